//! Links in virtual time: packets arrive or are lost, and links change.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use rdma_proto::Burst;
use rdma_proto::wire::Headers;
use rdma_types::Qpn;

use crate::address::Path;
use crate::engine::adapter::Adapter;
use crate::engine::adapter::notices::{Endpoints, Reason};
use crate::engine::wire::Mailbox;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::fabric::clock::Time;
use crate::fabric::random::SplitMix;
use crate::fabric::simulation::Events;
use crate::link::frame;
use crate::link::model::{Direction, Fate, LinkModel};
use crate::sync::locked;

/// The approximate size of a packet's headers: Ethernet, IPv4, UDP, BTH and ICRC.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;

/// A packet that a device of a network has sent, and what happens to it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SentPacket<'a> {
    /// The name of the sending device.
    pub from: &'a str,
    /// The name of the receiving device.
    pub to: &'a str,
    /// The queue pair that the packet is for.
    pub destination: Qpn,
    /// The bytes after the headers.
    pub payload: &'a [u8],
    /// The time at which the packet was sent, on the clock of [`Network::now`](crate::Network::now).
    pub sent: Duration,
    /// The time at which the packet arrives. `None` if it is lost.
    pub arrives: Option<Duration>,
    /// The time at which the packet arrives again, if it is repeated.
    pub repeated: Option<Duration>,
    /// Whether bits were flipped, so that the receiver usually drops the packet.
    pub is_damaged: bool,
}

/// A function that is called for each packet that is sent.
type Observer = Box<dyn Fn(&SentPacket<'_>) + Send + Sync>;

/// The links between the devices of a simulated subnet.
#[derive(Debug)]
pub(crate) struct Links {
    net: Mutex<Net>,
}

struct Net {
    random: SplitMix,
    /// The model of links without a model of their own.
    model: LinkModel,
    /// The state of each direction, by the names of the sender and the receiver.
    directions: BTreeMap<(&'static str, &'static str), Direction>,
    /// Scheduled events.
    events: BinaryHeap<Reverse<Event>>,
    /// The number of events scheduled so far.
    numbered: u64,
    /// The number of packets sent so far.
    packets: u64,
    trace: DefaultHasher,
    observer: Option<Observer>,
}

impl std::fmt::Debug for Net {
    /// Prints the network without the function of its observer.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, packets, .. } = self;
        f.debug_struct("Net")
            .field("model", model)
            .field("packets", packets)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Event {
    at: Time,
    /// The order of events that happen at the same time.
    number: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A packet arrives.
    Packet { to: &'static dyn Mailbox, letter: Box<Letter> },
    /// A link gets a different model.
    Change { from: &'static Adapter, to: &'static Adapter, model: LinkModel },
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Links {
    pub(crate) fn new(seed: u64) -> Self {
        let net = Net {
            random: SplitMix::new(seed),
            model: LinkModel::new(),
            directions: BTreeMap::new(),
            events: BinaryHeap::new(),
            numbered: 0,
            packets: 0,
            trace: DefaultHasher::new(),
            observer: None,
        };
        Self { net: Mutex::new(net) }
    }

    /// Sets the model of all links without a model of their own.
    pub(crate) fn set_all(&self, model: LinkModel) {
        locked(&self.net).model = model;
    }

    /// Sets the model of the link from one device to another, starting at time `at`.
    pub(crate) fn set(
        &self,
        at: Time,
        from: &'static Adapter,
        to: &'static Adapter,
        model: LinkModel,
    ) {
        let mut net = locked(&self.net);
        if at <= from.fabric.clock.now() {
            net.direction(from, to).model = Some(model);
        } else {
            net.plan(at, What::Change { from, to, model });
        }
    }

    /// Drops the scheduled events and the state of each direction, because no device sends any more. Packets in flight
    /// are lost.
    pub(crate) fn retire(&self) {
        let mut net = locked(&self.net);
        net.events = BinaryHeap::new();
        net.observer = None;
        net.directions = BTreeMap::new();
    }

    /// Calls a function for each packet that is sent from now on, instead of an earlier one.
    pub(crate) fn observe(&self, observer: Observer) {
        let earlier = locked(&self.net).observer.replace(observer);
        drop(earlier);
    }

    /// Returns the number of packets sent.
    pub(crate) fn packets(&self) -> u64 {
        locked(&self.net).packets
    }

    /// Returns a hash of all packets that were sent, and of their fates.
    pub(crate) fn trace(&self) -> u64 {
        locked(&self.net).trace.finish()
    }

    /// Puts packets on their way. Returns how many packets will arrive, including duplicates.
    pub(crate) fn send(
        &self,
        from: &'static Adapter,
        to: &'static Adapter,
        inbox: &'static dyn Mailbox,
        letter: &Letter,
    ) -> usize {
        let Letter { path, ref burst, datagram, .. } = *letter;
        let now = to.fabric.clock.now();
        let mut net = locked(&self.net);
        let (mut arriving, mut damaged) = (0, 0);
        for (mut headers, mut payload) in burst.packets(letter.payload()) {
            let fate = net.fate(from, to, HEADERS + payload.len() as u64, now);
            net.note(now, (from, to), &headers, payload, &fate);
            let frame;
            if fate.flipped > 0 {
                frame = net.flip(fate.flipped, path, datagram, &headers, payload);
                let Ok(found) = frame::check(to.link, &frame) else {
                    damaged += 1;
                    continue;
                };
                (headers, payload) = (found.headers, &frame[found.payload]);
            }
            let burst = Burst::single(headers, payload.len());
            for at in [fate.arrives, fate.again].into_iter().flatten() {
                let letter = Box::new(Letter::new(path, burst, datagram, payload.into()));
                net.plan(at, What::Packet { to: inbox, letter });
                arriving += 1;
            }
        }
        drop(net);
        if damaged > 0 {
            // The receiver drops the damaged packets.
            let qpn = burst.header.bth.destination.get();
            let endpoints = Endpoints { qpn, peer_qpn: None, address: Some(path.local) };
            to.drop_packets(Reason::Damaged, damaged, endpoints);
        }
        arriving
    }
}

impl Events for Links {
    fn next(&self) -> Option<Time> {
        locked(&self.net).events.peek().map(|Reverse(event)| event.at)
    }

    fn run_next(&self) {
        let mut net = locked(&self.net);
        match net.events.pop() {
            Some(Reverse(Event { what: What::Packet { to, letter }, .. })) => {
                drop(net);
                to.arrive(*letter);
            }
            Some(Reverse(Event { what: What::Change { from, to, model }, .. })) => {
                net.direction(from, to).model = Some(model);
            }
            None => {}
        }
    }
}

impl Net {
    fn plan(&mut self, at: Time, what: What) {
        self.numbered += 1;
        self.events.push(Reverse(Event { at, number: self.numbered, what }));
    }

    fn direction(&mut self, from: &'static Adapter, to: &'static Adapter) -> &mut Direction {
        self.directions.entry((&from.name, &to.name)).or_default()
    }

    fn fate(
        &mut self,
        from: &'static Adapter,
        to: &'static Adapter,
        bytes: u64,
        now: Time,
    ) -> Fate {
        self.packets += 1;
        let direction = self.directions.entry((&from.name, &to.name)).or_default();
        // A device's packets to itself do not use a link.
        let all = if from.name == to.name { LinkModel::new() } else { self.model };
        let model = direction.model.unwrap_or(all);
        direction.send(&model, bytes, now, &mut self.random)
    }

    /// Returns the frame of a packet in which `bits` bits were flipped.
    fn flip(
        &mut self,
        bits: u32,
        path: Path,
        datagram: Option<Datagram>,
        headers: &Headers,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut frame = Vec::new();
        // If the packet cannot be written, the frame is empty and contains no packet.
        let _ = frame::write(&path, datagram.as_ref(), headers, payload, &mut frame);
        for _ in 0..bits {
            let bit = self.random.below(8 * u32::try_from(frame.len()).unwrap_or(0));
            if let Some(byte) = frame.get_mut(bit as usize / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        frame
    }

    /// Adds a packet to the trace, without memory addresses and sequence numbers, which differ from run to run.
    fn note(
        &mut self,
        now: Time,
        (from, to): (&Adapter, &Adapter),
        headers: &Headers,
        payload: &[u8],
        fate: &Fate,
    ) {
        let bth = &headers.bth;
        let header = (bth.opcode.code(), bth.destination.get(), bth.ack_request);
        let arrivals = [fate.arrives, fate.again].map(|at| at.map(Time::nanoseconds));
        (now.nanoseconds(), &from.name, &to.name, header, payload).hash(&mut self.trace);
        (arrivals, fate.flipped).hash(&mut self.trace);
        let Some(observer) = &self.observer else { return };
        let since = |at: Time| at.since(Time::BEGINNING);
        observer(&SentPacket {
            from: &from.name,
            to: &to.name,
            destination: bth.destination,
            payload,
            sent: since(now),
            arrives: fate.arrives.map(since),
            repeated: fate.again.map(since),
            is_damaged: fate.flipped > 0,
        });
    }
}
