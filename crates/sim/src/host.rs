//! The devices and queue pairs of a run, and their expected state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdma_soft::{Builder, Link, Network, SoftDevice};
use rdma_sys::{ibv_mtu, ibv_qp_type, ibv_sge};
use test_support::rig::connect::{self, Endpoint, Knobs};
use test_support::rig::datagram::{self, Ah};
use test_support::rig::srq::Srq;
use test_support::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Mr, Pd, Qp, Size};

use crate::memory::{Atomic, Placed, Target};
use crate::script::{Connection, Script, ScriptRequest, Service, Settings};
use crate::windows::{BINDABLE, Use, Windows};

/// A device and the objects that its queue pairs share. Fields are dropped in order.
pub(crate) struct Host {
    pub(crate) srq: Option<Srq>,
    pub(crate) shared: Pool,
    pub(crate) send_cq: Cq,
    pub(crate) receive_cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
    pub(crate) soft: SoftDevice,
}

/// Slots of memory for receives.
pub(crate) struct Pool {
    mr: Mr,
    iova: u64,
    slot: usize,
    free: Vec<usize>,
    /// The posted slots, oldest first.
    pub(crate) posted: VecDeque<usize>,
}

/// The contents of a slot before anything is received.
const EMPTY: u8 = 0xee;
/// The number of bytes after each slot.
pub(crate) const BETWEEN: usize = 16;
/// The maximum total size of a queue's slots, unless two slots need more.
const POOL_BYTES: usize = 1 << 18;

impl Pool {
    fn new(pd: &Pd, iova: u64, longest: usize, slots: usize) -> Self {
        let slot = longest + datagram::HEADER;
        let slots = slots.min(POOL_BYTES / slot).max(2);
        let memory = vec![EMPTY; slots * (slot + BETWEEN)];
        let mr = pd.register_at(memory, iova, LOCAL_WRITE);
        Self { mr, iova, slot, free: (0..slots).rev().collect(), posted: VecDeque::new() }
    }

    /// Returns a free slot and the elements of a receive for it.
    pub(crate) fn take(&mut self, elements: usize) -> Option<(usize, Vec<ibv_sge>)> {
        let slot = self.free.pop()?;
        let at = slot * (self.slot + BETWEEN);
        self.mr.fill_part(at, self.slot + BETWEEN, EMPTY);
        self.posted.push_back(slot);
        let lkey = self.mr.key();
        let part = self.slot / elements;
        let element = |n: usize| {
            let length = if n + 1 == elements { self.slot - n * part } else { part };
            let addr = self.iova + (at + n * part) as u64;
            ibv_sge { addr, length: length as u32, lkey }
        };
        Some((slot, (0..elements).map(element).collect()))
    }

    /// Frees a slot that is no longer posted, and returns its contents and the bytes after it.
    pub(crate) fn give_back(&mut self, slot: usize) -> Vec<u8> {
        self.posted.retain(|&posted| posted != slot);
        self.free.push(slot);
        let mut bytes = vec![0; self.slot + BETWEEN];
        self.mr.copy_out(slot * (self.slot + BETWEEN), &mut bytes);
        bytes
    }
}

/// Returns true if the bytes are those of an unused slot.
pub(crate) fn untouched(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == EMPTY)
}

/// A request that was posted and has not completed.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) sequence: u32,
    pub(crate) message: u64,
    pub(crate) request: ScriptRequest,
    /// The offset of the request's bytes in local memory, and how many bytes it occupies there.
    pub(crate) block: usize,
    pub(crate) block_bytes: usize,
    pub(crate) placed: Option<Placed>,
    pub(crate) atomic: Option<Atomic>,
    /// Whether the target was deregistered before the post.
    pub(crate) too_late: bool,
    /// The window that the request uses or changes.
    pub(crate) through: Option<Use>,
}

/// A message that consumes a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) number: u64,
    /// The number of the sending queue pair.
    pub(crate) source: u32,
    pub(crate) length: usize,
    pub(crate) immediate: Option<u32>,
    /// The target of a WRITE.
    pub(crate) placed: Option<Placed>,
    /// The number of times that the message has arrived.
    pub(crate) came: u32,
    /// The group to which the message was sent.
    pub(crate) group: Option<usize>,
    /// Whether the receiver is a member of that group, and whether it has been one all the time.
    pub(crate) member: bool,
    pub(crate) certain: bool,
    /// The window that the message invalidates.
    pub(crate) invalidates: Option<Use>,
}

impl Message {
    /// Returns true if the message may be in flight.
    pub(crate) fn is_awaited(&self) -> bool {
        self.came == 0 && self.member
    }
}

/// Outcomes of a queue pair's requests that faults excuse.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Excuses {
    /// Answers may be missing for longer than the queue pair keeps retrying.
    pub(crate) silence: bool,
    /// The peer's target may be deregistered.
    pub(crate) access: bool,
    /// The queue pair may go to the error state although none of its own requests failed.
    pub(crate) flushed: bool,
    /// A window to be bound or invalidated may no longer exist.
    pub(crate) binds: bool,
}

/// A queue pair, its memory, and their expected state. Fields are dropped in order.
pub(crate) struct SimQueuePair {
    /// `None` after it was destroyed.
    pub(crate) qp: Option<Qp>,
    pub(crate) ways: BTreeMap<usize, Ah>,
    pub(crate) group_ways: Vec<Ah>,
    pub(crate) windows: Windows,
    pub(crate) local: Mr,
    pub(crate) target: Option<Mr>,
    pub(crate) pool: Pool,
    pub(crate) device: usize,
    pub(crate) peer: usize,
    pub(crate) service: Service,
    pub(crate) shares: bool,
    pub(crate) capacity: usize,
    /// The groups that the queue pair is a member of.
    pub(crate) groups: BTreeSet<usize>,

    // The local memory is used as a ring.
    next: usize,
    used: usize,

    pub(crate) known: Target,
    /// The memory of a deregistered target, and its contents at that time.
    pub(crate) frozen: Option<(Vec<u8>, Vec<u8>)>,
    /// The last key of the target.
    pub(crate) last_rkey: u32,
    pub(crate) pending: VecDeque<Sent>,
    pub(crate) sequence: u32,
    /// The number of unsignaled requests at the end of the queue.
    pub(crate) silent: usize,
    pub(crate) failed: bool,
    pub(crate) excuses: Excuses,
    /// Messages that are still to be received.
    pub(crate) expected: VecDeque<Message>,
    /// The last message that was received.
    pub(crate) received: u64,
    /// Whether messages found no posted receive.
    pub(crate) starved: bool,
    /// Whether a receive was flushed before the reason was known.
    pub(crate) flushed_early: bool,
}

pub(crate) fn local_iova(end: usize) -> u64 {
    0x10_0000_0000 * (4 * end as u64 + 1)
}

pub(crate) fn target_iova(end: usize) -> u64 {
    0x10_0000_0000 * (4 * end as u64 + 2)
}

fn pool_iova(end: usize) -> u64 {
    0x10_0000_0000 * (4 * end as u64 + 3)
}

/// The rights of a target without a window, including the right to bind windows.
pub(crate) const TARGET_ACCESS: u32 = ALL_ACCESS | BINDABLE;
pub(crate) const INLINE: usize = 64;
/// The queue size of a datagram queue pair.
const DATAGRAMS: u32 = 32;

impl Host {
    pub(crate) fn new(network: &Network, script: &Script, device: usize) -> Self {
        let settings = &script.settings;
        let name = format!("sim-{:016x}-d{device}", script.seed);
        let link = if settings.infiniband { Link::InfiniBand } else { Link::Ethernet };
        let soft = Builder::new(&name).link(link).network(network).install().unwrap();
        let context = Context::open(&name);
        let queues = settings.connections.iter().filter(|c| c.devices.contains(&device));
        let entries = 2 * (queues.map(|c| c.sends + c.receives).sum::<u32>() + 64)
            + 2 * 64 * settings.datagrams.len() as u32;
        let entries = entries.next_power_of_two().cast_signed();
        let (send_cq, receive_cq) = (context.cq(entries), context.cq(entries));
        let pd = context.pd();
        let is_used = |c: &Connection| (0..2).any(|n| c.shared[n] && c.devices[n] == device);
        let srq = settings.connections.iter().any(is_used).then(|| pd.srq(32, 4));
        let slots = if srq.is_some() { 32 } else { 2 };
        let shared = Pool::new(&pd, pool_iova(1000 + device), settings.longest, slots);
        Self { srq, shared, send_cq, receive_cq, pd, context, soft }
    }
}

impl SimQueuePair {
    pub(crate) fn new(hosts: &[Host], settings: &Settings, end: usize) -> Self {
        let connection = settings.connections.get(end / 2);
        let datagram = end.checked_sub(2 * settings.connections.len());
        let (device, service) = match (connection, datagram) {
            (Some(connection), _) => (connection.devices[end % 2], connection.service),
            (None, n) => (settings.datagrams[n.unwrap_or(0)], Service::Datagram),
        };
        let host = &hosts[device];
        let shares = connection.is_some_and(|c| c.shared[end % 2]);
        let qp_type = match service {
            Service::Reliable => ibv_qp_type::IBV_QPT_RC,
            Service::Unreliable => ibv_qp_type::IBV_QPT_UC,
            Service::Datagram => ibv_qp_type::IBV_QPT_UD,
        };
        let send_wr = connection.map_or(DATAGRAMS, |c| c.sends);
        let receive_wr = connection.map_or(DATAGRAMS, |c| c.receives);
        let size = Size { qp_type, send_wr, receive_wr, inline: INLINE as u32, ..Size::default() };
        let qp = match &host.srq {
            Some(srq) if shares => host.pd.qp_with_srq(&host.send_cq, &host.receive_cq, &size, srq),
            _ => host.pd.qp(&host.send_cq, &host.receive_cq, &size),
        };
        let longest = settings.longest;
        let local = vec![0; (4 * (longest + 64)).max(1 << 15)];
        let known = Target::new(end, longest);
        let slots = if shares { 2 } else { receive_wr as usize };
        Self {
            qp: Some(qp),
            ways: BTreeMap::new(),
            group_ways: Vec::new(),
            windows: Windows::default(),
            local: host.pd.register_at(local, local_iova(end), LOCAL_WRITE),
            target: Some(host.pd.register_at(known.known.clone(), target_iova(end), TARGET_ACCESS)),
            pool: Pool::new(&host.pd, pool_iova(end), longest, slots),
            device,
            peer: if service == Service::Datagram { end } else { end ^ 1 },
            service,
            shares,
            capacity: send_wr as usize,
            groups: BTreeSet::new(),
            next: 0,
            used: 0,
            known,
            frozen: None,
            last_rkey: 0,
            pending: VecDeque::new(),
            sequence: 0,
            silent: 0,
            failed: false,
            excuses: Excuses::default(),
            expected: VecDeque::new(),
            received: 0,
            starved: false,
            flushed_early: false,
        }
    }

    /// Returns true if the local memory has space.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let room = self.local.length();
        let wraps = self.next + bytes > room;
        self.used + bytes + if wraps { room - self.next } else { 0 } <= room
    }

    /// Reserves space in the local memory. Returns its offset and the number of bytes that it
    /// occupies.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Option<(usize, usize)> {
        let room = self.local.length();
        let wraps = self.next + bytes > room;
        let taken = bytes + if wraps { room - self.next } else { 0 };
        if self.used + taken > room {
            return None;
        }
        let block = if wraps { 0 } else { self.next };
        self.next = block + bytes;
        self.used += taken;
        Some((block, taken))
    }

    /// Frees the oldest reservation.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    pub(crate) fn endpoint(&self, hosts: &[Host]) -> Option<Endpoint> {
        self.qp.as_ref().map(|qp| connect::endpoint(&hosts[self.device].context, qp))
    }

    /// Returns the contents of the target, whether or not it is registered.
    pub(crate) fn target_bytes(&self, from: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        match (&self.target, &self.frozen) {
            (Some(mr), _) => mr.copy_out(from, &mut bytes),
            (None, Some((memory, _))) => bytes.copy_from_slice(&memory[from..from + length]),
            (None, None) => {}
        }
        bytes
    }
}

/// Connects both ends, or readies a queue pair for datagrams.
pub(crate) fn connect(
    hosts: &[Host],
    ends: &[SimQueuePair],
    settings: &Settings,
    end: usize,
    life: u32,
) {
    let (Some(own), Some(qp)) = (ends[end].endpoint(hosts), &ends[end].qp) else { return };
    let Some(c) = settings.connections.get(end / 2) else {
        return datagram::activate(qp, datagram::QKEY);
    };
    let Some(peer) = ends[end ^ 1].endpoint(hosts) else { return };
    let mtu = match c.mtu {
        256 => ibv_mtu::IBV_MTU_256,
        512 => ibv_mtu::IBV_MTU_512,
        1024 => ibv_mtu::IBV_MTU_1024,
        2048 => ibv_mtu::IBV_MTU_2048,
        _ => ibv_mtu::IBV_MTU_4096,
    };
    let knobs = Knobs {
        access: ALL_ACCESS,
        mtu,
        psn: (c.psn + life * 0x0035_7911) & 0x00ff_ffff,
        timeout: c.timeout,
        retries: c.retries,
        rnr_retries: c.rnr_retries,
        min_rnr_timer: c.min_rnr_timer,
        rd_atomic: c.rd_atomic,
    };
    match c.service {
        Service::Reliable => connect::connect(qp, &own, &peer, &knobs),
        _ => connect::connect_unreliably(qp, &own, &peer, &knobs),
    }
}
