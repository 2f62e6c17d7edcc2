//! A link through memory: a device has an inbox, in which the devices of its fabric put their packets.
//!
//! Nothing is lost here, and nothing overtakes: packets that one device sends arrive in their
//! order. A sender that finds no space gets another turn when there is some.

use std::sync::{Arc, Weak};

use rdma_proto::Burst;
use rdma_types::Psn;

use crate::address::{Group, Path};
use crate::device::Device;
use crate::engine::completion::work_completion::Source;
use crate::engine::wire;
use crate::fabric::clock::Time;
use crate::fabric::stalls;
use crate::fabric::timers::{Alarm, Alarmed};
use crate::fabric::turns::{Driven, Place};
use crate::link::executed::WordKey;
use crate::link::outbox::{Outbox, Sizes, new_buffer};
use crate::link::pcap::Tap;
use crate::sync::{Held, Mutex, MutexGuard, locked_in_models as locked};

/// How many bytes of payload a burst has at most: a packet of the largest MTU, or several of smaller ones.
pub(crate) const BURST_BYTES: usize = if cfg!(loom) { 16 << 10 } else { 64 << 10 };

/// How many bursts wait in an inbox, or are being written for it: in models few.
pub(crate) const BURSTS: usize = if cfg!(loom) { 2 } else { 256 };

const INBOX: Sizes = Sizes { bursts: BURSTS, spare: 32, buffer: BURST_BYTES };

/// A burst on its way.
#[derive(Debug)]
pub(crate) struct Letter {
    /// From its sender to its receiver.
    pub(crate) path: Path,
    pub(crate) burst: Burst,
    /// What is said of a datagram beside its headers.
    pub(crate) datagram: Option<Datagram>,
    /// Whether it is a refusal that is void: its receiver has a receive request now.
    pub(crate) is_void: bool,
    payload: Box<[u8]>,
    /// How many had arrived at the inbox before it.
    pub(crate) number: u64,
    /// Another process or another host has sent it.
    from_outside: bool,
    /// Of requests to another process: the word that says how far they are executed.
    pub(crate) word: Option<WordKey>,
    /// Where that is, if they came from another process.
    pub(crate) words: Option<Arc<dyn ExecutedWords>>,
}

/// Where another process looks how far its requests are executed.
pub(crate) trait ExecutedWords: Send + Sync + std::fmt::Debug {
    /// All packets before this one were executed, of the connection that has this word.
    fn store(&self, key: WordKey, expected: Psn);

    /// Has the process look, if it does not look by itself. The caller holds no lock but the receive side of a device.
    fn announce(&self);
}

/// What the link says of a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) source: Source,
    /// The route header of its packet, if it came with one.
    pub(crate) header: Option<[u8; 40]>,
    /// The multicast group that it is for, if it is for one.
    pub(crate) group: Option<Group>,
}

impl Letter {
    pub(crate) fn new(
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        payload: Box<[u8]>,
    ) -> Self {
        debug_assert!(burst.length as usize <= payload.len());
        let (number, from_outside, is_void, word, words) = (0, false, false, None, None);
        Self { path, burst, datagram, is_void, payload, number, from_outside, word, words }
    }

    /// A void refusal: an RNR NAK for whose packet there is a receive request now. Only links between processes carry it.
    pub(crate) fn void(path: Path, refusal: Burst, payload: Box<[u8]>) -> Self {
        Self { is_void: true, ..Self::new(path, refusal, None, payload) }
    }

    /// Another process or another host has sent it.
    #[cfg(not(loom))]
    pub(crate) fn from_outside(
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        payload: Box<[u8]>,
    ) -> Self {
        Self { from_outside: true, ..Self::new(path, burst, datagram, payload) }
    }

    /// With the word that says how far it is executed.
    pub(crate) fn with_word(self, word: Option<WordKey>) -> Self {
        Self { word, ..self }
    }

    /// All packets before this one were executed, of what this one belongs to. Says whether its sender learns that.
    pub(crate) fn store(&self, expected: Psn) -> bool {
        let (Some(words), Some(word)) = (&self.words, self.word) else { return false };
        words.store(word, expected);
        true
    }

    #[cfg(not(loom))]
    pub(crate) fn into_buffer(self) -> Box<[u8]> {
        self.payload
    }

    /// The same with a buffer that is no longer than its payload, and the buffer that it had.
    #[cfg(not(loom))]
    pub(crate) fn of_own_size(self) -> (Self, Box<[u8]>) {
        let payload = self.payload().into();
        let Self { payload: buffer, .. } = self;
        (Self { payload, ..self }, buffer)
    }

    fn is_for_many(&self) -> bool {
        self.datagram.is_some_and(|datagram| datagram.group.is_some())
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..self.burst.length as usize]
    }
}

/// Where the packets of a device arrive.
#[derive(Debug)]
pub(crate) struct Inbox {
    device: &'static Device,
    /// Held by the thread that takes packets out, until they are executed.
    receive_side: Mutex<()>,
    letters: Mutex<Letters>,
    place: Place,
    alarm: Alarm,
}

#[derive(Debug)]
struct Letters {
    arrived: Outbox<Letter>,
    /// The number of letters that have arrived, since the beginning.
    count: u64,
}

impl Inbox {
    pub(crate) fn of(device: &'static Device) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            device,
            receive_side: Mutex::default(),
            letters: Mutex::new(Letters { arrived: Outbox::new(INBOX), count: 0 }),
            place: Place::default(),
            alarm: Alarm::new(device.fabric, weak.clone()),
        })
    }

    /// A buffer for the payload of one burst, which is to be [sent](Self::send) or [given
    /// back](Self::give_back). If there is no space the sender gets another turn when there is.
    pub(crate) fn buffer<D: Driven + 'static>(&self, sender: &Arc<D>) -> Option<Box<[u8]>> {
        let mut letters = locked(&self.letters);
        letters.has_room_for(sender).then(|| Self::lend(letters))
    }

    /// Whether there is space, for a sender that has something for several inboxes. If there is
    /// none it gets another turn when there is.
    pub(crate) fn has_room<D: Driven + 'static>(&self, sender: &Arc<D>) -> bool {
        locked(&self.letters).has_room_for(sender)
    }

    /// A buffer as [`buffer`](Self::buffer) gives it, for a sender that has [found
    /// space](Self::has_room): also if others have taken it since, so that it is for all inboxes or
    /// for none.
    pub(crate) fn buffer_at_once(&self) -> Box<[u8]> {
        Self::lend(locked(&self.letters))
    }

    fn lend(mut letters: Held<MutexGuard<'_, Letters>>) -> Box<[u8]> {
        let spare = letters.arrived.lend();
        drop(letters);
        spare.unwrap_or_else(|| new_buffer(BURST_BYTES))
    }

    pub(crate) fn give_back(&self, buffer: Box<[u8]>) {
        let turned_away = {
            let arrived = &mut locked(&self.letters).arrived;
            arrived.take_back(buffer);
            arrived.readmit_all()
        };
        self.call_back(&turned_away);
    }

    /// Gives a turn to those who found no space.
    fn call_back(&self, turned_away: &[Weak<dyn Driven>]) {
        for sender in turned_away.iter().filter_map(Weak::upgrade) {
            self.device.fabric.unsettled.note_turn_of(&sender);
        }
    }

    /// The payload of the burst is at the beginning of the buffer.
    pub(crate) fn send(
        self: &Arc<Self>,
        from: &'static Device,
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        payload: Box<[u8]>,
    ) {
        let letter = Letter::new(path, burst, datagram, payload);
        let Some(simulation) = &self.device.fabric.simulation else { return self.arrive(letter) };
        let turned_away = {
            // Before they are on their way, since another thread may have them arrive at once.
            let arrived = &mut locked(&self.letters).arrived;
            let payload = letter.payload();
            let arriving = simulation.send(from, self.device, path, &burst, datagram, payload);
            arrived.lent += arriving;
            arrived.take_back(letter.payload);
            // If no packet is on its way, none will arrive that calls them back.
            if arriving == 0 { arrived.readmit_all() } else { Vec::new() }
        };
        self.call_back(&turned_away);
    }

    /// Returns when all that has arrived by now is executed, whatever arrives meanwhile. The caller holds no lock.
    #[cfg(not(loom))]
    pub(crate) fn execute_all(self: &Arc<Self>) {
        let arrived = self.arrived();
        let waits = |letter: &Letter| letter.number < arrived;
        while locked(&self.letters).arrived.waiting.front().is_some_and(waits) {
            Arc::clone(self).take_turn();
        }
        // Another thread may have the last of it in hand.
        drop(locked(&self.receive_side));
    }

    /// How many bursts have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        locked(&self.letters).count
    }

    /// What was sent is there.
    pub(crate) fn arrive(self: &Arc<Self>, letter: Letter) {
        {
            let letters = &mut *locked(&self.letters);
            letters.arrived.put(Letter { number: letters.count, ..letter });
            letters.count += 1;
        }
        self.device.fabric.unsettled.note_turn(self);
    }

    /// Packets that the sender's device has not written down are written down here.
    #[cold]
    fn capture(&self, tap: &Arc<Tap>, letter: &Letter) {
        let devices = &self.device.fabric.devices;
        let sender = match letter.from_outside {
            true => None,
            false => devices.at(self.device.link, &letter.path.local),
        };
        tap.received(sender.and_then(|sender| sender.tap.as_ref()), letter);
    }

    /// Nobody takes packets here any more.
    pub(crate) fn retire(&self) {
        locked(&self.letters).arrived.clear();
    }

    /// Waits until nobody executes packets that have arrived, and drops those for the queue pair with that
    /// number that were not. The caller holds no lock.
    pub(crate) fn pass(&self, number: u32) {
        let _receive_side = locked(&self.receive_side);
        let is_for = |letter: &Letter| letter.burst.header.bth.destination.get() == number;
        locked(&self.letters).arrived.waiting.retain(|letter| !is_for(letter));
    }
}

impl Letters {
    fn has_room_for<D: Driven + 'static>(&mut self, sender: &Arc<D>) -> bool {
        if self.arrived.space() > 0 {
            return true;
        }
        let sender: Weak<dyn Driven> = Arc::<D>::downgrade(sender);
        self.arrived.turn_away(sender);
        false
    }
}

impl Driven for Inbox {
    fn place(&self) -> &Place {
        &self.place
    }

    /// Takes some of what has arrived.
    fn take_turn(self: Arc<Self>) -> bool {
        {
            let _receive_side = locked(&self.receive_side);
            let mut afterwards = wire::Afterwards::default();
            let mut left = wire::TURN;
            while left > 0 {
                let Some(letter) = locked(&self.letters).arrived.waiting.pop_front() else { break };
                stalls::here();
                // A void refusal is no packet.
                let captures = self.device.port_is_up() && !letter.is_void;
                if let Some(tap) = self.device.tap.as_ref().filter(|_| captures) {
                    self.capture(tap, &letter);
                }
                left = left.saturating_sub(letter.burst.segments.into());
                wire::receive(self.device, &letter, &mut afterwards);
                let for_many = letter.is_for_many();
                locked(&self.letters).arrived.keep(letter.payload);
                if for_many {
                    // A packet for a group is as much work as many others.
                    break;
                }
            }
            // Before another thread executes what comes next.
            afterwards.settle();
        }
        let (more, turned_away) = {
            let arrived = &mut locked(&self.letters).arrived;
            (!arrived.waiting.is_empty(), arrived.readmit_all())
        };
        self.call_back(&turned_away);
        more
    }

    fn call(&self) {
        self.alarm.set(Time::AT_ONCE);
    }
}

impl Alarmed for Inbox {
    fn alarm_rings(self: Arc<Self>) {
        self.device.fabric.unsettled.settle();
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
    use rdma_proto::{Datagrams, Destination, End};
    use rdma_types::{Mtu, Psn, Qpn};

    use super::*;
    use crate::address::Address;
    use crate::device::limits::Limits;
    use crate::fabric::Fabric;
    use crate::fabric::random::Seed;
    use crate::link::Link;
    use crate::schedule::Schedule;
    use crate::sync::while_one_waits;

    /// Counts its turns.
    #[derive(Debug, Default)]
    struct Sender {
        place: Place,
        turns: AtomicU32,
    }

    impl Driven for Sender {
        fn place(&self) -> &Place {
            &self.place
        }

        fn take_turn(self: Arc<Self>) -> bool {
            self.turns.fetch_add(1, Ordering::Relaxed);
            false
        }

        fn call(&self) {}
    }

    /// Another thread may have packets arrive as soon as they are on their way: they are counted by then.
    #[test]
    fn nothing_is_on_its_way_before_it_is_counted() {
        static FABRIC: OnceLock<Fabric> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let fabric = FABRIC.get_or_init(|| Fabric::simulated(1));
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let device = DEVICE.get_or_init(|| {
            Device::new(fabric, "d".into(), link, Vec::new(), limits, schedule, &seed)
        });
        let inbox = device.inbox();
        let buffer = inbox.buffer(&Arc::new(Sender::default())).unwrap();
        let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
        let packets = || fabric.simulation.as_ref().unwrap().packets();
        let to = Destination { qpn: Qpn::new(2).unwrap(), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
        let end = End { length: 0, immediate: None, invalidate: None, solicited: false };
        let mut datagrams = Datagrams::new(Qpn::new(1).unwrap(), Mtu::MTU4096, Psn::masked(0));
        let burst = datagrams.send(&to, &end).unwrap();
        let send = || inbox.send(device, path, burst, None, buffer);
        while_one_waits(send, || locked(&inbox.letters), |_| assert_eq!(packets(), 0));
        assert_eq!((packets(), locked(&inbox.letters).arrived.lent), (1, 1));
        assert!(fabric.step());
        assert_eq!(locked(&inbox.letters).arrived.lent, 0);
    }

    /// A device of a fabric of its own, that no thread serves.
    fn device(
        fabric: &'static OnceLock<Fabric>,
        place: &'static OnceLock<Device>,
    ) -> &'static Device {
        let fabric = fabric.get_or_init(Fabric::new);
        fabric.serve_by_polls_alone();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let make = || Device::new(fabric, "d".into(), link, Vec::new(), limits, schedule, &seed);
        place.get_or_init(make)
    }

    /// Has a datagram of a partition lie in the inbox of a device, as a run of so many packets.
    fn put(device: &'static Device, p_key: u16, segments: u16) {
        let inbox = device.inbox();
        let buffer = inbox.buffer(&Arc::new(Sender::default())).unwrap();
        let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
        let to = Destination { qpn: Qpn::new(2).unwrap(), qkey: 0, p_key };
        let end = End { length: 0, immediate: None, invalidate: None, solicited: false };
        let mut datagrams = Datagrams::new(Qpn::new(1).unwrap(), Mtu::MTU4096, Psn::masked(0));
        let burst = Burst { segments, ..datagrams.send(&to, &end).unwrap() };
        inbox.arrive(Letter::new(path, burst, None, buffer));
    }

    /// Also if they came in few runs.
    #[test]
    fn a_turn_takes_sixteen_packets() {
        static FABRIC: OnceLock<Fabric> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&FABRIC, &DEVICE);
        (0..32).for_each(|_| put(device, Bth::DEFAULT_P_KEY, 8));
        let taken = || device.tally.counters().unknown_qp;
        for packets in [16, 32, 48] {
            assert!(Arc::clone(device.inbox()).take_turn());
            assert_eq!(taken(), packets);
        }
    }

    /// The port is a full member of the default partition, so that limited members of it are heard, too.
    #[test]
    fn packets_of_other_partitions_are_dropped() {
        static FABRIC: OnceLock<Fabric> = OnceLock::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = device(&FABRIC, &DEVICE);
        for p_key in [0x1234, 0x9234, 0, 0x8000, 0x7ffe, 0xfffe] {
            put(device, p_key, 1);
        }
        FABRIC.get().unwrap().unsettled.settle();
        let counted = || {
            let counters = device.tally.counters();
            (counters.bad_pkey_cntr, counters.unknown_qp)
        };
        assert_eq!(counted(), (6, 0));
        put(device, 0x7fff, 1);
        put(device, 0xffff, 1);
        FABRIC.get().unwrap().unsettled.settle();
        assert_eq!(counted(), (6, 2));
    }

    /// Also if the space is given back unused, so that nothing arrives.
    #[test]
    fn who_found_no_room_gets_a_turn_when_there_is_some() {
        static FABRIC: Fabric = Fabric::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let seed = Seed::new(1);
        let make = || {
            Device::new(&FABRIC, "d".into(), Link::Ethernet, Vec::new(), limits, schedule, &seed)
        };
        let inbox = DEVICE.get_or_init(make).inbox();
        let sender = Arc::new(Sender::default());
        let mut buffers: Vec<_> = std::iter::from_fn(|| inbox.buffer(&sender)).collect();
        assert_eq!(buffers.len(), BURSTS);
        let turns = || {
            FABRIC.unsettled.settle();
            sender.turns.load(Ordering::Relaxed)
        };
        assert_eq!(turns(), 0);
        inbox.give_back(buffers.remove(0));
        assert_eq!(turns(), 1);
        assert!(inbox.buffer(&sender).is_some());
    }

    /// Sends as much as a turn takes, again each time when it may.
    #[derive(Debug)]
    struct Endless {
        place: Place,
        to: &'static Arc<Inbox>,
        own: Weak<Endless>,
        left: AtomicU32,
    }

    impl Endless {
        fn send(&self) {
            let opcode = Opcode::reliable(Operation::Acknowledge);
            let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
            for _ in 0..wire::TURN {
                let bth = Bth::new(opcode, Qpn::masked(5), Psn::masked(0));
                let burst = Burst::single(Headers::new(bth), 0);
                let buffer = self.to.buffer_at_once();
                self.to.arrive(Letter::from_outside(path, burst, None, buffer));
            }
            let own: Weak<dyn Driven> = Weak::<Self>::clone(&self.own);
            locked(&self.to.letters).arrived.turn_away(own);
        }
    }

    impl Driven for Endless {
        /// Who is called back is asked for it.
        fn place(&self) -> &Place {
            if self.left.fetch_sub(1, Ordering::Relaxed) > 1 {
                self.send();
            }
            &self.place
        }

        fn take_turn(self: Arc<Self>) -> bool {
            false
        }

        fn call(&self) {}
    }

    /// A link would wait as long as a peer sends.
    #[test]
    fn what_arrives_meanwhile_is_not_waited_for() {
        static FABRIC: Fabric = Fabric::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let device = DEVICE.get_or_init(|| {
            Device::new(&FABRIC, "d".into(), link, Vec::new(), limits, schedule, &seed)
        });
        let (to, place) = (device.inbox(), Place::default());
        let sender = Arc::new_cyclic(|own| Endless {
            place,
            to,
            own: Weak::clone(own),
            left: AtomicU32::new(1000),
        });
        (0..3).for_each(|_| sender.send());
        to.execute_all();
        assert_eq!(device.tally.counters().unknown_qp, u64::from(3 * wire::TURN));
        assert!(sender.left.load(Ordering::Relaxed) > 900);
    }
}
