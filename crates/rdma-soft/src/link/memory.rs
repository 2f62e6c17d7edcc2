//! A link through memory: each device has inboxes, to which the devices of its fabric write packets.
//!
//! Without simulated links, no packet is lost, and packets from one device to one queue pair arrive in order. A sender that
//! finds no space gets another turn when there is space.

use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use crate::address::Address;
use crate::engine::adapter::Adapter;
use crate::engine::wire::letter::{BURST_BYTES, Letter};
use crate::engine::wire::{Mailbox, TURN};
use crate::fabric::run_queue::{Entry, Task};
use crate::fabric::stalls;
use crate::link::outbox::{Outbox, Sizes, new_buffer};
use crate::link::pcap::Tap;
use crate::link::simulation::Links;
use crate::sync::delegation::{DelegationGuard, DelegationLock};
use crate::sync::{Held, Mutex, MutexGuard, locked_in_models as locked};

/// The maximum number of bursts that wait in an inbox or are being written to it. Models allow only two.
pub(crate) const BURSTS: usize = if cfg!(loom) { 2 } else { 128 };

const INBOX: Sizes = Sizes { bursts: BURSTS, spare: 8, buffer: BURST_BYTES };

/// The number of inboxes of a device.
const INBOXES: usize = if cfg!(loom) { 1 } else { 8 };

/// A device that receives packets through its inboxes.
pub(crate) trait Receives:
    Deref<Target = Adapter> + Sync + std::fmt::Debug + 'static
{
    /// Work that is deferred to the end of a turn, and done before the receive side is released.
    type Afterwards: Default;

    /// Executes packets that have arrived. The caller holds the receive side. Returns false if nothing was executed, because
    /// that would have to wait for another thread or for answers, and `may_wait` is false.
    fn receive(
        &'static self,
        letter: &Letter,
        afterwards: &mut Self::Afterwards,
        may_wait: bool,
    ) -> bool;

    /// Does the deferred work. The caller holds the receive side, and none of the locks after it in the
    /// [order](crate::engine).
    fn settle(&self, afterwards: &Self::Afterwards);

    /// Returns the links of the device's subnet, if time is virtual.
    fn links(&self) -> Option<&Links>;

    /// Returns the capture of the device with this address, if there is one.
    fn tap_at(&self, address: &Address) -> Option<&'static Arc<Tap>>;
}

/// The inboxes of a device. Each is created before the first packet can arrive there. All packets for a queue pair go
/// to the same inbox, so they stay in order. Threads execute packets from different inboxes at the same time.
#[derive(Debug)]
pub(crate) struct Inboxes<D: 'static>([OnceLock<Arc<Inbox<D>>>; INBOXES]);

impl<D: Receives> Inboxes<D> {
    pub(crate) fn new() -> Self {
        Self([const { OnceLock::new() }; INBOXES])
    }

    /// Returns the inbox for packets for the queue pair with this number, and creates it if necessary.
    pub(crate) fn of(&self, device: &'static D, number: u32) -> &Arc<Inbox<D>> {
        let index = index(number);
        self.0[index].get_or_init(|| Inbox::of(device, index))
    }

    /// Returns the inbox for packets for the queue pair with this number, if it was created.
    pub(crate) fn existing(&self, number: u32) -> Option<&Arc<Inbox<D>>> {
        self.0[index(number)].get()
    }

    /// Returns all inboxes that were created.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Inbox<D>>> {
        self.0.iter().filter_map(OnceLock::get)
    }
}

fn index(number: u32) -> usize {
    number as usize % INBOXES
}

/// A queue of packets that have arrived at a device.
#[derive(Debug)]
pub(crate) struct Inbox<D: 'static> {
    device: &'static D,
    /// The index among the device's inboxes.
    index: usize,
    /// Locked by the thread that takes packets out, until they are executed.
    receive_side: DelegationLock<()>,
    letters: Mutex<Letters>,
    entry: Entry,
}

#[derive(Debug)]
struct Letters {
    arrived: Outbox<Letter>,
    /// The number of the next letter. A letter that could not be executed at once gets a second number.
    count: u64,
}

impl<D: Receives> Inbox<D> {
    fn of(device: &'static D, index: usize) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            device,
            index,
            receive_side: DelegationLock::default(),
            letters: Mutex::new(Letters { arrived: Outbox::new(INBOX), count: 0 }),
            entry: Entry::new(device.fabric, weak.clone()),
        })
    }

    fn lend(mut letters: Held<MutexGuard<'_, Letters>>) -> Box<[u8]> {
        let spare = letters.arrived.lend();
        drop(letters);
        spare.unwrap_or_else(|| new_buffer(BURST_BYTES))
    }

    /// Queues a turn for each sender that found no space.
    fn queue_turns(&self, senders: &[Weak<dyn Task>]) {
        for sender in senders.iter().filter_map(Weak::upgrade) {
            sender.entry().queue();
        }
    }

    /// Runs `work`, which executes something that arrives now, with the receive side locked. Returns `None`, and does not
    /// run it, if another thread executes packets, or packets that arrived earlier wait. Among these may be
    /// acknowledgements of requests that are answered now, which must complete first.
    #[cfg(not(loom))]
    pub(crate) fn execute_at_once<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let _receive_side = Held::new(self.receive_side.try_lock(|| self.entry.queue())?);
        if !locked(&self.letters).arrived.waiting.is_empty() {
            return None;
        }
        stalls::here();
        Some(work())
    }

    /// Executes a letter that arrives now from another process. Returns false, and does not execute it, under the same
    /// conditions as [`execute_at_once`](Self::execute_at_once), or if another thread is using its queue pair. The letter
    /// has a buffer of this inbox.
    #[cfg(not(loom))]
    pub(crate) fn arrive_at_once(&self, letter: &mut Letter) -> bool {
        let executed = self.execute_at_once(|| {
            {
                let letters = &mut *locked(&self.letters);
                letter.number = letters.count;
                letters.count += 1;
            }
            let mut afterwards = D::Afterwards::default();
            let executed = self.device.receive(letter, &mut afterwards, false);
            self.device.settle(&afterwards);
            executed
        });
        executed == Some(true)
    }

    /// Waits until everything that has arrived so far is executed, but not for later arrivals. The caller holds no
    /// lock.
    #[cfg(not(loom))]
    pub(crate) fn execute_all(self: &Arc<Self>) {
        let arrived = self.arrived();
        let waits = |letter: &Letter| letter.number < arrived;
        while locked(&self.letters).arrived.waiting.front().is_some_and(waits) {
            self.execute_some(self.receive_side());
        }
        self.finish_executing();
    }

    /// Waits until no other thread executes packets, and locks the receive side.
    fn receive_side(&self) -> Held<DelegationGuard<'_, (), impl Fn()>> {
        Held::new(self.receive_side.lock(|| self.entry.queue()))
    }

    /// Executes some of the arrived packets. Returns true if there are more.
    fn execute_some(&self, receive_side: Held<DelegationGuard<'_, (), impl Fn()>>) -> bool {
        let mut afterwards = D::Afterwards::default();
        let mut left = TURN;
        while left > 0 {
            let Some(letter) = locked(&self.letters).arrived.waiting.pop_front() else { break };
            stalls::here();
            // A void refusal is not a packet.
            let captures = self.device.port_is_up() && !letter.is_void;
            if let Some(tap) = self.device.tap.as_ref().filter(|_| captures) {
                self.capture(tap, &letter);
            }
            left = left.saturating_sub(letter.burst.segments.into());
            self.device.receive(&letter, &mut afterwards, true);
            let for_many = letter.is_for_many();
            locked(&self.letters).arrived.keep(letter.into_buffer());
            if for_many {
                // Ends the turn, because a packet for a group is as much work as many others.
                break;
            }
        }
        // Done before another thread can execute the next packets.
        self.device.settle(&afterwards);
        drop(receive_side);
        let (more, senders) = {
            let arrived = &mut locked(&self.letters).arrived;
            (!arrived.waiting.is_empty(), arrived.take_all_senders())
        };
        self.queue_turns(&senders);
        more
    }

    /// Waits until no thread is executing a packet that has arrived. The caller holds no lock.
    pub(crate) fn finish_executing(&self) {
        drop(self.receive_side());
    }

    /// Returns the number of the next letter. All letters that have arrived have smaller ones.
    pub(crate) fn arrived(&self) -> u64 {
        locked(&self.letters).count
    }

    /// Captures packets here unless the sender's device has already captured them in the same file.
    #[cold]
    fn capture(&self, tap: &Arc<Tap>, letter: &Letter) {
        let sender = match letter.from_outside {
            true => None,
            false => self.device.tap_at(&letter.path.local),
        };
        tap.received(sender, letter);
    }

    /// Returns true if another thread will execute packets that this one or others have left to it.
    #[cfg(not(loom))]
    pub(crate) fn has_left_work(&self) -> bool {
        self.receive_side.has_left_work()
    }

    /// Drops all packets, because the device was closed.
    pub(crate) fn retire(&self) {
        locked(&self.letters).arrived.clear();
    }

    /// Waits until no thread is executing arrived packets, and drops the remaining ones for the queue pair with this
    /// number. The caller holds no lock.
    pub(crate) fn purge(&self, number: u32) {
        let _receive_side = self.receive_side();
        let is_for = |letter: &Letter| letter.burst.header.bth.destination.get() == number;
        locked(&self.letters).arrived.waiting.retain(|letter| !is_for(letter));
    }
}

impl<D: Receives> Mailbox for Inbox<D> {
    fn buffer(&self, sender: Weak<dyn Task>) -> Option<Box<[u8]>> {
        let mut letters = locked(&self.letters);
        letters.has_room_for(sender).then(|| Self::lend(letters))
    }

    fn has_room(&self, sender: Weak<dyn Task>) -> bool {
        locked(&self.letters).has_room_for(sender)
    }

    fn buffer_at_once(&self) -> Box<[u8]> {
        Self::lend(locked(&self.letters))
    }

    fn give_back(&self, buffer: Box<[u8]>) {
        let senders = {
            let arrived = &mut locked(&self.letters).arrived;
            arrived.take_back(buffer);
            arrived.take_all_senders()
        };
        self.queue_turns(&senders);
    }

    fn send(&'static self, from: &'static Adapter, letter: Letter) {
        let Some(links) = self.device.links() else { return self.arrive(letter) };
        let senders = {
            // Locked until the packets are counted, because another thread may make them arrive as soon as they are on
            // their way.
            let arrived = &mut locked(&self.letters).arrived;
            let arriving = links.send(from, self.device, self, &letter);
            arrived.lent += arriving;
            arrived.take_back(letter.into_buffer());
            // If no packet is on its way, no arrival will call these senders back.
            if arriving == 0 { arrived.take_all_senders() } else { Vec::new() }
        };
        self.queue_turns(&senders);
    }

    fn arrive(&self, mut letter: Letter) {
        debug_assert_eq!(index(letter.burst.header.bth.destination.get()), self.index);
        {
            let letters = &mut *locked(&self.letters);
            letter.number = letters.count;
            letters.arrived.put(letter);
            letters.count += 1;
        }
        self.entry.queue();
    }
}

impl Letters {
    fn has_room_for(&mut self, sender: Weak<dyn Task>) -> bool {
        if self.arrived.space() > 0 {
            return true;
        }
        self.arrived.add_waiting_sender(sender);
        false
    }
}

impl<D: Receives> Task for Inbox<D> {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Executes some of the arrived packets, or leaves them to the thread that is executing others. Where time is virtual,
    /// waits for that thread, because the next deadline may pass as soon as this returns.
    fn run(self: Arc<Self>) -> bool {
        if self.device.links().is_some() {
            return self.execute_some(self.receive_side());
        }
        let receive_side = self.receive_side.lock_or_leave(|| self.entry.queue());
        receive_side.is_some_and(|held| self.execute_some(Held::new(held)))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
    use rdma_proto::{Burst, Datagrams, Destination, MessageEnd};
    use rdma_types::{Mtu, Psn, Qpn};

    use super::*;
    use crate::address::Path;
    use crate::device::Device;
    use crate::device::arrivals::tests::queue_pair;
    use crate::device::subnet::Subnet;
    use crate::engine::queue_pair::service::Service;
    use crate::fabric::random::Seed;
    use crate::fabric::run_queue::tests::Turns;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::schedule::Schedule;
    use crate::sync::while_one_waits;

    fn weak(sender: &Arc<Turns>) -> Weak<dyn Task> {
        Arc::<Turns>::downgrade(sender)
    }

    /// Returns a sender that no longer exists.
    fn nobody() -> Weak<dyn Task> {
        Weak::<Turns>::new()
    }

    /// Another thread may make packets arrive as soon as they are on their way, so they must already be counted.
    #[test]
    fn packets_are_counted_before_they_are_on_their_way() {
        static SUBNET: OnceLock<Subnet> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let subnet = SUBNET.get_or_init(|| Subnet::simulated(1));
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let device = DEVICE.get_or_init(|| {
            Device::new(subnet, "d".into(), link, Vec::new(), limits, schedule, &seed)
        });
        let inbox = device.inbox(2);
        let buffer = inbox.buffer(nobody()).unwrap();
        let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
        let packets = || subnet.links.as_ref().unwrap().packets();
        let to = Destination { qpn: Qpn::new(2).unwrap(), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
        let end = MessageEnd { length: 0, immediate: None, invalidate: None, solicited: false };
        let mut datagrams = Datagrams::new(Qpn::new(1).unwrap(), Mtu::MTU4096, Psn::masked(0));
        let burst = datagrams.send(&to, &end).unwrap();
        let send = || inbox.send(device, Letter::new(path, burst, None, buffer));
        while_one_waits(send, || locked(&inbox.letters), |_| assert_eq!(packets(), 0));
        assert_eq!((packets(), locked(&inbox.letters).arrived.lent), (1, 1));
        assert!(subnet.step());
        assert_eq!(locked(&inbox.letters).arrived.lent, 0);
    }

    /// Creates a device with its own fabric, which has no thread.
    fn device(
        subnet: &'static OnceLock<Subnet>,
        place: &'static OnceLock<Device>,
    ) -> &'static Device {
        let subnet = subnet.get_or_init(Subnet::new);
        subnet.serve_by_polls_alone();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let make = || Device::new(subnet, "d".into(), link, Vec::new(), limits, schedule, &seed);
        place.get_or_init(make)
    }

    /// Puts a datagram with this partition key into the inbox of a device, as a run of `segments` packets.
    fn put(device: &'static Device, p_key: u16, segments: u16) {
        put_for(device, 2, p_key, segments);
    }

    fn put_for(device: &'static Device, number: u32, p_key: u16, segments: u16) {
        let inbox = device.inbox(number);
        let buffer = inbox.buffer(nobody()).unwrap();
        let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
        let to = Destination { qpn: Qpn::new(number).unwrap(), qkey: 0, p_key };
        let end = MessageEnd { length: 0, immediate: None, invalidate: None, solicited: false };
        let mut datagrams = Datagrams::new(Qpn::new(1).unwrap(), Mtu::MTU4096, Psn::masked(0));
        let burst = Burst { segments, ..datagrams.send(&to, &end).unwrap() };
        inbox.arrive(Letter::new(path, burst, None, buffer));
    }

    /// This also holds for packets that arrived in runs.
    #[test]
    fn a_turn_executes_sixteen_packets() {
        static SUBNET: OnceLock<Subnet> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&SUBNET, &DEVICE);
        (0..32).for_each(|_| put(device, Bth::DEFAULT_P_KEY, 8));
        let taken = || device.tally.counters().unknown_qp;
        for packets in [16, 32, 48] {
            assert!(Arc::clone(device.inbox(2)).run());
            assert_eq!(taken(), packets);
        }
    }

    /// A thread that executes a long copy does not delay packets for most other queue pairs.
    #[test]
    fn packets_are_executed_while_another_inbox_is_locked() {
        static SUBNET: OnceLock<Subnet> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&SUBNET, &DEVICE);
        put(device, Bth::DEFAULT_P_KEY, 1);
        let [own, other] = [2, 3].map(|number| device.inbox(number));
        assert!(!Arc::ptr_eq(own, other));
        let _receive_side = other.receive_side();
        own.execute_all();
        assert_eq!(device.tally.counters().unknown_qp, 1);
    }

    /// A thread leaves packets to another one that is executing packets from the same inbox.
    #[test]
    fn no_turn_waits_for_a_thread_that_executes_packets() {
        static SUBNET: OnceLock<Subnet> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&SUBNET, &DEVICE);
        put(device, Bth::DEFAULT_P_KEY, 1);
        let run = || SUBNET.get().unwrap().run_queue.run();
        let counted = || device.tally.counters().unknown_qp;
        let held = device.inbox(2).receive_side();
        // On another thread, because a thread that waited for itself would never end.
        thread::scope(|scope| scope.spawn(run).join().unwrap());
        assert_eq!(counted(), 0);
        drop(held);
        run();
        assert_eq!(counted(), 1);
    }

    /// Destroying a queue pair drops its packets, and keeps other threads from executing those of others meanwhile.
    #[test]
    fn packets_that_are_left_to_a_call_are_executed_before_it_returns() {
        static SUBNET: OnceLock<Subnet> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&SUBNET, &DEVICE);
        let destroyed = queue_pair(device, Service::ReliableConnection);
        let other = destroyed.qpn ^ u32::try_from(INBOXES).unwrap();
        let inbox = device.inbox(other);
        assert!(Arc::ptr_eq(inbox, device.inbox(destroyed.qpn)));
        put_for(device, other, Bth::DEFAULT_P_KEY, 1);
        thread::scope(|scope| {
            let letters = locked(&inbox.letters);
            let call = scope.spawn(|| destroyed.destroy());
            while inbox.receive_side.try_lock(|| {}).is_some() {
                thread::yield_now();
            }
            SUBNET.get().unwrap().run_queue.run();
            assert!(inbox.has_left_work());
            drop(letters);
            call.join().unwrap();
        });
        assert_eq!(device.tally.counters().unknown_qp, 1);
    }

    /// The port is a full member of the default partition, so it also accepts packets from limited members.
    #[test]
    fn packets_of_other_partitions_are_dropped() {
        static SUBNET: OnceLock<Subnet> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&SUBNET, &DEVICE);
        for p_key in [0x1234, 0x9234, 0, 0x8000, 0x7ffe, 0xfffe] {
            put(device, p_key, 1);
        }
        SUBNET.get().unwrap().run_queue.run();
        let counted = || {
            let counters = device.tally.counters();
            (counters.bad_pkey_cntr, counters.unknown_qp)
        };
        assert_eq!(counted(), (6, 0));
        put(device, 0x7fff, 1);
        put(device, 0xffff, 1);
        SUBNET.get().unwrap().run_queue.run();
        assert_eq!(counted(), (6, 2));
    }

    /// This also holds if a buffer is returned unused, so that nothing arrives.
    #[test]
    fn a_sender_without_space_gets_a_turn_when_there_is_some() {
        static SUBNET: Subnet = Subnet::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let seed = Seed::new(1);
        let make = || {
            Device::new(&SUBNET, "d".into(), Link::Ethernet, Vec::new(), limits, schedule, &seed)
        };
        let inbox = DEVICE.get_or_init(make).inbox(2);
        let sender = Turns::new(&SUBNET);
        let mut buffers: Vec<_> = std::iter::from_fn(|| inbox.buffer(weak(&sender))).collect();
        assert_eq!(buffers.len(), BURSTS);
        let turns = || {
            SUBNET.run_queue.run();
            sender.count.load(Ordering::Relaxed)
        };
        assert_eq!(turns(), 0);
        inbox.give_back(buffers.remove(0));
        assert_eq!(turns(), 1);
        assert!(inbox.buffer(weak(&sender)).is_some());
    }

    /// Sends as many packets as a turn executes, each time that it is called back.
    #[derive(Debug)]
    struct Endless {
        entry: Entry,
        to: &'static Arc<Inbox<Device>>,
        own: Weak<Endless>,
        left: AtomicU32,
    }

    impl Endless {
        fn send(&self) {
            let opcode = Opcode::reliable(Operation::Acknowledge);
            let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
            for _ in 0..TURN {
                let bth = Bth::new(opcode, Qpn::masked(5), Psn::masked(0));
                let burst = Burst::single(Headers::new(bth), 0);
                let buffer = self.to.buffer_at_once();
                self.to.arrive(Letter::from_outside(path, burst, None, buffer));
            }
            let own: Weak<dyn Task> = Weak::<Self>::clone(&self.own);
            locked(&self.to.letters).arrived.add_waiting_sender(own);
        }
    }

    impl Task for Endless {
        /// The inbox asks for the entry only to call the sender back, so the sender sends again here.
        fn entry(&self) -> &Entry {
            if self.left.fetch_sub(1, Ordering::Relaxed) > 1 {
                self.send();
            }
            &self.entry
        }
    }

    /// If `execute_all` waited for later arrivals, a link would wait as long as a peer sends.
    #[test]
    fn later_arrivals_are_not_waited_for() {
        static SUBNET: Subnet = Subnet::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let device = DEVICE.get_or_init(|| {
            Device::new(&SUBNET, "d".into(), link, Vec::new(), limits, schedule, &seed)
        });
        let to = device.inbox(5);
        let sender = Arc::new_cyclic(|own: &Weak<Endless>| Endless {
            entry: Entry::new(device.fabric, own.clone()),
            to,
            own: Weak::clone(own),
            left: AtomicU32::new(1000),
        });
        (0..3).for_each(|_| sender.send());
        to.execute_all();
        assert_eq!(device.tally.counters().unknown_qp, u64::from(3 * TURN));
        assert!(sender.left.load(Ordering::Relaxed) > 900);
    }
}
