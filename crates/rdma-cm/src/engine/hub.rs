//! The channels of a process that share queue pair 1 of a device.
//!
//! A MAD that arrives can be for any of these channels. The thread that reads it passes it on. A REQ goes to the channel
//! that listens to the service. Any other message goes to the channel whose slot is in the receiver's communication ID.

mod mads;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mem::{Context, Gid};
use rdma_proto::cm::wire::{Mad, Message};
use rdma_proto::cm::{Address, CommId, ServiceId, Transmit};
use rdma_sys::{AddressedMad, PerProcess, Process};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use self::mads::Mads;
use crate::error::Error;

/// The maximum number of MADs that a thread reads before it handles those of its own channel.
const READS: u32 = 64;
/// The maximum number of MADs that wait for a channel. Further ones are dropped, and their senders repeat them.
const WAITING: usize = 256;
/// The number of slots: the upper 12 bits of a communication ID.
const SLOTS: u16 = 1 << 12;

/// The hubs of the process, each with its device's address.
type Hubs = PerProcess<Vec<(usize, Weak<Hub>)>>;

static HUBS: LazyLock<Mutex<Hubs>> = LazyLock::new(Mutex::default);

struct Hub {
    mads: Mads,
    routes: Mutex<Routes>,
}

#[derive(Default)]
struct Routes {
    inboxes: BTreeMap<u16, Arc<Inbox>>,
    /// The channel that listens to each service, or that was the last one to do so.
    services: BTreeMap<ServiceId, u16>,
    next: u16,
}

/// The MADs for one channel.
struct Inbox {
    mads: Mutex<VecDeque<AddressedMad>>,
    /// Readable while there are MADs.
    signal: OwnedFd,
}

/// A channel's part of a hub.
pub(super) struct Member {
    hub: Arc<Hub>,
    slot: u16,
    inbox: Arc<Inbox>,
    process: Process,
}

/// The channel that a MAD is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Listener(ServiceId),
    Slot(u16),
    All,
    /// The MAD belongs to no connection. The channel whose thread has read it answers.
    Any,
}

impl Receiver {
    fn of(mad: &[u8]) -> Self {
        let slot = |id: CommId| Self::Slot(id.slot());
        match Mad::parse(mad).map(|mad| mad.message) {
            Ok(Message::Req(req)) => Self::Listener(req.offer.service_id),
            Ok(Message::SidrReq(request)) => Self::Listener(request.query.service_id),
            // A REJ that withdraws a REQ does not contain the receiver's ID.
            Ok(Message::Rej(rej)) if rej.remote_id == CommId::NONE => Self::All,
            Ok(Message::Rej(rej)) => slot(rej.remote_id),
            Ok(Message::Mra(mra)) => slot(mra.remote_id),
            Ok(Message::Rep(rep)) => slot(rep.remote_id),
            Ok(Message::Rtu(rtu)) => slot(rtu.remote_id),
            Ok(Message::Dreq(dreq)) => slot(dreq.remote_id),
            Ok(Message::Drep(drep)) => slot(drep.remote_id),
            Ok(Message::SidrRep(reply)) => slot(reply.request_id),
            _ => Self::Any,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Returns the hub of a device, or `None` if the device reaches no other host.
    fn of(context: &Context) -> Result<Option<Arc<Self>>, Error> {
        let device = context.device().as_raw().addr();
        let mut hubs = locked(&HUBS);
        let hubs = hubs.get(Vec::clear);
        hubs.retain(|(_, hub)| hub.strong_count() > 0);
        let found = hubs.iter().filter(|(other, _)| *other == device);
        let mut found = found.filter_map(|(_, hub)| hub.upgrade());
        if let Some(hub) = found.next() {
            return Ok(Some(hub));
        }
        let Some(mads) = Mads::open(context)? else { return Ok(None) };
        let hub = Arc::new(Self { mads, routes: Mutex::default() });
        hubs.push((device, Arc::downgrade(&hub)));
        Ok(Some(hub))
    }

    /// Passes on a MAD. If it is for no channel, `reader` gets it: the thread that has read it handles it next.
    fn pass_on(&self, mad: &AddressedMad, reader: &Inbox) {
        let routes = locked(&self.routes);
        let slot = match Receiver::of(&mad.mad) {
            Receiver::All => return routes.inboxes.values().for_each(|inbox| inbox.put(mad)),
            Receiver::Listener(service) => routes.services.get(&service).copied(),
            Receiver::Slot(slot) => Some(slot),
            Receiver::Any => None,
        };
        let inbox = slot.and_then(|slot| routes.inboxes.get(&slot));
        inbox.map_or(reader, |inbox| inbox).put(mad);
    }
}

impl Inbox {
    fn put(&self, mad: &AddressedMad) {
        let mut mads = locked(&self.mads);
        if mads.len() < WAITING {
            mads.push_back(*mad);
            self.ring();
        }
    }

    /// Makes the channel handle its timers.
    fn ring(&self) {
        let _ = write(&self.signal, &1_u64.to_ne_bytes());
    }

    fn take_all(&self) -> VecDeque<AddressedMad> {
        let mut mads = locked(&self.mads);
        let _ = read(&self.signal, &mut [0_u8; 8]);
        std::mem::take(&mut *mads)
    }
}

impl Member {
    /// Joins the hub of a device. Returns `None` if the device reaches no other host.
    pub(super) fn join(context: &Context) -> Result<Option<Self>, Error> {
        let Some(hub) = Hub::of(context)? else { return Ok(None) };
        let failed = Error::system("open an event channel");
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(&failed)?;
        let inbox = Arc::new(Inbox { mads: Mutex::default(), signal });
        let mut routes = locked(&hub.routes);
        let Routes { inboxes, next, .. } = &mut *routes;
        // A slot is not reused soon, so that late messages reach no other channel.
        let mut slots = (0..SLOTS).map(|n| next.wrapping_add(n) % SLOTS);
        let slot = slots.find(|slot| !inboxes.contains_key(slot));
        let slot = slot.ok_or(Errno::MFILE).map_err(&failed)?;
        *next = slot.wrapping_add(1);
        inboxes.insert(slot, Arc::clone(&inbox));
        drop(routes);
        Ok(Some(Self { hub, slot, inbox, process: Process::current() }))
    }

    /// Returns the upper 12 bits of the channel's communication IDs.
    pub(super) const fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns the files that are readable when MADs have arrived: for any channel, and for this one.
    pub(super) fn files(&self) -> [&OwnedFd; 2] {
        [self.hub.mads.file(), &self.inbox.signal]
    }

    /// Passes on MADs that have arrived, and returns those for this channel.
    pub(super) fn receive(&self) -> VecDeque<AddressedMad> {
        let messages = (0..READS).map_while(|_| self.hub.mads.receive());
        messages.for_each(|message| match message {
            mads::Message::Mad(mad) => self.hub.pass_on(&mad, &self.inbox),
            mads::Message::Alarm => {
                locked(&self.hub.routes).inboxes.values().for_each(|inbox| inbox.ring());
            }
        });
        self.inbox.take_all()
    }

    pub(super) fn listen(&self, service: ServiceId) {
        locked(&self.hub.routes).services.insert(service, self.slot);
    }

    /// Returns the local address from which MADs to an address are sent. Returns `None` if the device does not reach the
    /// address.
    pub(super) fn source_to(&self, remote: Gid) -> Option<Gid> {
        self.hub.mads.source_to(remote)
    }

    /// Returns the time of the device's clock in nanoseconds, if it has one of its own.
    pub(super) fn time(&self) -> Option<u64> {
        self.hub.mads.time()
    }

    /// Makes the channel's files readable at a time of the device's clock.
    pub(super) fn set_alarm(&self, at: u64) {
        self.hub.mads.set_alarm(at);
    }

    /// Lets the time of the device's clock pass until its next event, but not beyond `until`. Returns true if there was
    /// an event.
    pub(super) fn pass_time(&self, until: u64) -> bool {
        self.hub.mads.pass_time(until)
    }

    pub(super) fn send(&self, local: Gid, transmit: &Transmit) {
        let Address::Gid(remote) = transmit.to else { return };
        let (source, destination) = (local.to_bytes(), remote.to_bytes());
        self.hub.mads.send(&AddressedMad { source, destination, mad: transmit.mad });
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may have held the lock. The child has a hub of its own.
        if !self.process.is_current() {
            return;
        }
        let routes = &mut *locked(&self.hub.routes);
        routes.inboxes.remove(&self.slot);
        routes.services.retain(|_, slot| *slot != self.slot);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rdma_proto::cm::wire::Dreq;
    use rdma_soft::Builder;
    use rdma_types::Qpn;
    use test_support::rig::fork::Child;

    use super::*;

    /// Opens a new device that is alone at an address of the loopback interface. Each number belongs to one device.
    pub(in crate::engine) fn host(number: u32) -> (Context, Ipv4Addr) {
        let ip = Ipv4Addr::from_bits(0x7f80_0000 | (std::process::id() & 0xffff) << 6 | number);
        let name = format!("alone{number}");
        Builder::new(&name).gids([]).listen(ip.to_string()).install().unwrap();
        (rdma_mem::open_device(&name).unwrap(), ip)
    }

    /// Another channel may never read its messages.
    #[test]
    fn a_message_for_no_channel_is_handled_by_the_one_that_has_read_it() {
        let ((near, to), (far, from)) = (host(8), host(9));
        let [idle, reader, sender] =
            [&near, &near, &far].map(|context| Member::join(context).unwrap().unwrap());
        let unknown = CommId::new(u32::from(SLOTS - 1) << 20);
        let dreq = Dreq {
            local_id: unknown,
            remote_id: unknown,
            remote_qpn: Qpn::masked(1),
            private_data: &[],
        };
        let mad = Mad { tid: 1, message: Message::Dreq(dreq) }.emit().unwrap();
        let to = Address::Gid(Gid::from_ipv4(to));
        sender.send(Gid::from_ipv4(from), &Transmit { to, mad });
        let read = loop {
            let read = reader.receive();
            if !read.is_empty() {
                break read;
            }
            thread::yield_now();
        };
        assert_eq!(read.len(), 1);
        assert!(idle.inbox.take_all().is_empty());
    }

    #[test]
    fn a_member_in_a_forked_child_does_not_wait_for_threads_of_its_parent() {
        let (context, _) = host(5);
        let mut member = Member::join(&context).unwrap();
        let hub = Arc::clone(&member.as_ref().unwrap().hub);
        let routes = locked(&hub.routes);
        let child = Child::fork(|| {
            let member = member.take();
            let (dropped, is_dropped) = mpsc::channel();
            thread::spawn(move || {
                drop(member);
                let _ = dropped.send(());
            });
            is_dropped.recv_timeout(Duration::from_secs(20)).unwrap();
        });
        child.join();
        drop(routes);
    }
}
