//! A fabric in virtual time: what happens next, one event after the other.
//!
//! An event is an alarm, or a packet that arrives. Nothing happens by itself: time passes where a program
//! polls in vain, or says so, and what is due meanwhile is done by its thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use rdma_proto::Burst;
use rdma_proto::wire::Headers;

use crate::address::Path;
use crate::device::Device;
use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::fabric::random::SplitMix;
use crate::link::frame;
use crate::link::memory::{Datagram, Letter};
use crate::link::model::{Direction, Fate, LinkModel};
use crate::sync::locked;

/// How long an empty poll takes.
const POLL: Duration = Duration::from_nanos(100);
/// One poll has time for so many events.
const EVENTS: u32 = 16;
/// Ethernet, IPv4, UDP, BTH and ICRC: about what packets have beside their payload.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;

/// What is between the devices of a simulated fabric.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Held by who has something happen.
    stepping: Mutex<()>,
    net: Mutex<Net>,
}

#[derive(Debug)]
struct Net {
    random: SplitMix,
    /// Of links that have none of their own.
    model: LinkModel,
    /// By the names of sender and receiver.
    directions: BTreeMap<(&'static str, &'static str), Direction>,
    on_the_way: BinaryHeap<Reverse<Flight>>,
    /// How many packets were sent.
    packets: u64,
    trace: DefaultHasher,
}

/// A packet on its way.
#[derive(Debug)]
struct Flight {
    arrives: Time,
    /// Of those that arrive together, in which order they were sent.
    number: u64,
    to: &'static Device,
    letter: Letter,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.arrives, self.number).cmp(&(other.arrives, other.number))
    }
}

impl Simulation {
    pub(super) fn new(seed: u64) -> Self {
        let net = Net {
            random: SplitMix::new(seed),
            model: LinkModel::new(),
            directions: BTreeMap::new(),
            on_the_way: BinaryHeap::new(),
            packets: 0,
            trace: DefaultHasher::new(),
        };
        Self { stepping: Mutex::new(()), net: Mutex::new(net) }
    }

    /// What all links do that were not told otherwise.
    pub(crate) fn set_all(&self, model: LinkModel) {
        locked(&self.net).model = model;
    }

    /// What the link does from one device to another.
    pub(crate) fn set(&self, from: &'static Device, to: &'static Device, model: LinkModel) {
        locked(&self.net).direction(from, to).model = Some(model);
    }

    /// How many packets were sent.
    pub(crate) fn packets(&self) -> u64 {
        locked(&self.net).packets
    }

    /// A number that depends on each packet that was sent, and on what became of it.
    pub(crate) fn trace(&self) -> u64 {
        locked(&self.net).trace.finish()
    }

    /// Puts packets on their way. Says how many will arrive.
    pub(crate) fn send(
        &self,
        from: &'static Device,
        to: &'static Device,
        path: Path,
        burst: &Burst,
        datagram: Option<Datagram>,
        payload: &[u8],
    ) -> usize {
        let now = to.fabric.clock.now();
        let mut net = locked(&self.net);
        let mut arriving = 0;
        for (mut headers, mut payload) in burst.packets(payload) {
            let fate = net.fate(from, to, HEADERS + payload.len() as u64, now);
            net.note(now, (from, to), &headers, payload, &fate);
            let frame;
            if fate.flipped > 0 {
                frame = net.flip(fate.flipped, path, datagram, &headers, payload);
                // Who receives it drops it.
                let Ok(found) = frame::check(to.link, &frame) else { continue };
                (headers, payload) = (found.headers, &frame[found.payload]);
            }
            let burst = Burst::single(headers, payload.len());
            for arrives in [fate.arrives, fate.again].into_iter().flatten() {
                let number = net.packets;
                let letter = Letter::new(path, burst, datagram, payload.into());
                net.on_the_way.push(Reverse(Flight { arrives, number, to, letter }));
                arriving += 1;
            }
        }
        arriving
    }

    /// When the next packet arrives.
    fn next(&self) -> Option<Time> {
        locked(&self.net).on_the_way.peek().map(|Reverse(flight)| flight.arrives)
    }

    /// The next packet arrives.
    fn arrive(&self) {
        let next = locked(&self.net).on_the_way.pop();
        if let Some(Reverse(Flight { to, letter, .. })) = next {
            to.inbox().arrive(letter);
        }
    }
}

impl Net {
    fn direction(&mut self, from: &'static Device, to: &'static Device) -> &mut Direction {
        self.directions.entry((&from.name, &to.name)).or_default()
    }

    fn fate(&mut self, from: &'static Device, to: &'static Device, bytes: u64, now: Time) -> Fate {
        self.packets += 1;
        let direction = self.directions.entry((&from.name, &to.name)).or_default();
        // What a device sends to itself does not leave it.
        let all = if from.name == to.name { LinkModel::new() } else { self.model };
        let model = direction.model.unwrap_or(all);
        direction.send(&model, bytes, now, &mut self.random)
    }

    /// The frame of a packet, of which so many bits are flipped.
    fn flip(
        &mut self,
        bits: u32,
        path: Path,
        datagram: Option<Datagram>,
        headers: &Headers,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut frame = Vec::new();
        // What cannot be written is empty, and no packet.
        let _ = frame::write(&path, datagram.as_ref(), headers, payload, &mut frame);
        for _ in 0..bits {
            let bit = self.random.below(8 * u32::try_from(frame.len()).unwrap_or(0));
            if let Some(byte) = frame.get_mut(bit as usize / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        frame
    }

    /// Neither addresses of memory nor sequence numbers: programs have others each time.
    fn note(
        &mut self,
        now: Time,
        (from, to): (&Device, &Device),
        headers: &Headers,
        payload: &[u8],
        fate: &Fate,
    ) {
        let bth = &headers.bth;
        let header = (bth.opcode.code(), bth.destination.get(), bth.ack_request);
        let arrivals = [fate.arrives, fate.again].map(|at| at.map(Time::nanoseconds));
        (now.nanoseconds(), &from.name, &to.name, header, payload).hash(&mut self.trace);
        (arrivals, fate.flipped).hash(&mut self.trace);
    }
}

impl Fabric {
    /// A poll was in vain: a moment passes, if time is virtual, and what is due meanwhile happens.
    #[cold]
    pub(crate) fn pass_moment(&self) {
        self.pass(self.clock.now() + POLL, EVENTS);
    }

    /// Has the next thing happen, and says whether there was one; also if another thread, or the caller of this
    /// one, is about it.
    pub(crate) fn step(&self) -> bool {
        self.with_steps(|simulation| self.next_happens(simulation, Time::END)).unwrap_or(true)
    }

    /// It becomes so late, and what is due until then happens.
    pub(crate) fn pass_until(&self, end: Time) {
        self.pass(end, u32::MAX);
    }

    fn pass(&self, end: Time, events: u32) {
        self.with_steps(|simulation| {
            for _ in 0..events {
                if !self.next_happens(simulation, end) {
                    self.clock.go_on_to(end);
                    return;
                }
            }
        });
    }

    fn with_steps<R>(&self, steps: impl FnOnce(&Simulation) -> R) -> Option<R> {
        let simulation = self.simulation.as_ref()?;
        let _stepping = match simulation.stepping.try_lock() {
            Ok(stepping) => stepping,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // What the program has left comes first.
        self.unsettled.settle();
        Some(steps(simulation))
    }

    /// Has the next thing happen that happens until then, and all that follows from it at once.
    fn next_happens(&self, simulation: &Simulation, end: Time) -> bool {
        let (packet, alarm) = (simulation.next(), self.timers.next());
        let Some(next) = packet.into_iter().chain(alarm).min().filter(|&next| next <= end) else {
            return false;
        };
        self.clock.go_on_to(next);
        // Packets first, of which a moment has only so many: who wants to be called at once again and again
        // holds up nobody.
        if packet == Some(next) {
            simulation.arrive();
        } else {
            self.ring_due_alarms();
        }
        self.unsettled.settle();
        true
    }
}
