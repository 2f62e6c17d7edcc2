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

/// A device and the objects that its queue pairs share. The fields are dropped in their order.
pub(crate) struct Host {
    pub(crate) srq: Option<Srq>,
    pub(crate) shared: Pool,
    pub(crate) send_cq: Cq,
    pub(crate) receive_cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
    pub(crate) soft: SoftDevice,
}

/// The memory slots for a queue's receives.
pub(crate) struct Pool {
    mr: Mr,
    iova: u64,
    slot: usize,
    free: Vec<usize>,
    /// The posted slots, starting with the oldest.
    pub(crate) posted: VecDeque<usize>,
}

/// The value of each byte of a slot until a message arrives.
const EMPTY: u8 = 0xee;
/// The number of bytes between two slots, which nothing may write.
pub(crate) const BETWEEN: usize = 16;
/// The maximum total size of the slots of a queue. It is exceeded only if two slots need more.
const POOL_BYTES: usize = 1 << 18;

impl Pool {
    fn new(pd: &Pd, iova: u64, longest: usize, slots: usize) -> Self {
        let slot = longest + datagram::HEADER;
        let slots = slots.min(POOL_BYTES / slot).max(2);
        let memory = vec![EMPTY; slots * (slot + BETWEEN)];
        let mr = pd.register_at(memory, iova, LOCAL_WRITE);
        Self { mr, iova, slot, free: (0..slots).rev().collect(), posted: VecDeque::new() }
    }

    /// Takes a free slot. Returns it with the elements of a receive for it.
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

    /// Frees a slot that is no longer posted. Returns its contents and those of the bytes after it.
    pub(crate) fn give_back(&mut self, slot: usize) -> Vec<u8> {
        self.posted.retain(|&posted| posted != slot);
        self.free.push(slot);
        let mut bytes = vec![0; self.slot + BETWEEN];
        self.mr.copy_out(slot * (self.slot + BETWEEN), &mut bytes);
        bytes
    }
}

/// Returns true if nothing was written to these bytes of a slot.
pub(crate) fn untouched(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == EMPTY)
}

/// A request that was posted and has not completed.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) sequence: u32,
    pub(crate) message: u64,
    pub(crate) request: ScriptRequest,
    /// The offset of the request's bytes in local memory.
    pub(crate) block: usize,
    /// The number of bytes that the request occupies in local memory.
    pub(crate) block_bytes: usize,
    pub(crate) placed: Option<Placed>,
    pub(crate) atomic: Option<Atomic>,
    /// Whether the target was deregistered before the request was posted.
    pub(crate) too_late: bool,
    /// The window that the request uses or changes.
    pub(crate) through: Option<Use>,
}

/// A message that consumes a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) number: u64,
    /// The number of the queue pair that sent the message.
    pub(crate) source: u32,
    pub(crate) length: usize,
    pub(crate) immediate: Option<u32>,
    /// The WRITE that belongs to the message, if any.
    pub(crate) placed: Option<Placed>,
    /// The number of times that the message has arrived.
    pub(crate) came: u32,
    /// The group to which the message was sent, if any.
    pub(crate) group: Option<usize>,
    /// Whether the receiver is a member of `group`; true if the message was sent to no group.
    pub(crate) member: bool,
    /// Whether `member` has been true since the message was sent, so that the message must arrive
    /// unless it is lost.
    pub(crate) certain: bool,
    /// The window that the message invalidates, if any.
    pub(crate) invalidates: Option<Use>,
}

impl Message {
    /// Returns true if the message may still arrive.
    pub(crate) fn is_awaited(&self) -> bool {
        self.came == 0 && self.member
    }
}

/// The failures of a queue pair's requests that deliberate faults excuse.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Excuses {
    /// Answers may be missing for longer than the queue pair retries.
    pub(crate) silence: bool,
    /// The target that the peer lends may be deregistered.
    pub(crate) access: bool,
    /// The queue pair may move to the error state although none of its own requests failed.
    pub(crate) flushed: bool,
    /// A window that is to be bound or invalidated may no longer exist.
    pub(crate) binds: bool,
}

/// A queue pair, its memory, and the expected state of both. The fields are dropped in their order.
pub(crate) struct SimQueuePair {
    /// `None` after the queue pair was destroyed.
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
    /// The groups that the queue pair belongs to.
    pub(crate) groups: BTreeSet<usize>,

    // The local memory is a ring; `used` bytes before `next` are reserved.
    next: usize,
    used: usize,

    pub(crate) known: Target,
    /// The memory of a deregistered target, and a copy of its contents at the time of
    /// deregistration.
    pub(crate) frozen: Option<(Vec<u8>, Vec<u8>)>,
    /// The most recent key of the target.
    pub(crate) last_rkey: u32,
    pub(crate) pending: VecDeque<Sent>,
    pub(crate) sequence: u32,
    /// The number of unsignaled requests since the last signaled one.
    pub(crate) silent: usize,
    pub(crate) failed: bool,
    pub(crate) excuses: Excuses,
    /// The messages that may still arrive.
    pub(crate) expected: VecDeque<Message>,
    /// The number of the last message that was received.
    pub(crate) received: u64,
    /// Whether messages may have found no posted receive.
    pub(crate) starved: bool,
    /// Whether a receive was flushed before the reason for the flush was known.
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

/// The rights of a target for accesses without a window, and the right to bind windows to it.
pub(crate) const TARGET_ACCESS: u32 = ALL_ACCESS | BINDABLE;
pub(crate) const INLINE: usize = 64;
/// The capacity of a datagram queue pair's queues.
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

    /// Returns true if the local memory has space for this many bytes.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let room = self.local.length();
        let wraps = self.next + bytes > room;
        self.used + bytes + if wraps { room - self.next } else { 0 } <= room
    }

    /// Reserves space for this many bytes in the local memory. Returns its offset, and how many
    /// bytes of the ring it takes up.
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

    /// Frees the oldest reservation, which takes up `bytes` bytes of the ring.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    pub(crate) fn endpoint(&self, hosts: &[Host]) -> Option<Endpoint> {
        self.qp.as_ref().map(|qp| connect::endpoint(&hosts[self.device].context, qp))
    }

    /// Returns bytes of the target's memory, whether or not it is registered.
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

/// Connects a queue pair to its peer, or activates it for datagrams.
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
