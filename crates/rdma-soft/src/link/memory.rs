//! A link through memory: a device has an inbox, in which the devices of its fabric put their packets.
//!
//! Nothing is lost here, and nothing overtakes: packets that one device sends arrive in their order. A sender
//! that finds no room gets another turn when there is some.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use rdma_proto::Burst;

use crate::address::Path;
use crate::device::Device;
use crate::engine::wire;
use crate::engine::work_completion::Source;
use crate::fabric::clock::Time;
use crate::fabric::timers::{Alarm, Alarmed};
use crate::fabric::turns::{Driven, Place};
use crate::sync::{Mutex, locked_in_models as locked};

/// How many bytes of payload a burst has at most: a packet of the largest MTU, or several of smaller ones.
const BURST_BYTES: usize = 16 << 10;

/// How many bursts wait in an inbox, or are being written for it: in models few.
pub(crate) const BURSTS: usize = if cfg!(loom) { 2 } else { 256 };

/// How many buffers an inbox keeps that are not in use.
const SPARE: usize = 32;

/// How many bursts a device takes in a turn.
const TURN: usize = 16;

/// A burst on its way.
#[derive(Debug)]
pub(crate) struct Letter {
    /// From its sender to its receiver.
    pub(crate) path: Path,
    pub(crate) burst: Burst,
    /// What is said of a datagram beside its headers.
    pub(crate) datagram: Option<Datagram>,
    payload: Box<[u8]>,
}

/// What the link says of a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) source: Source,
    /// The route header of its packet, if it came with one.
    pub(crate) header: Option<[u8; 40]>,
}

impl Letter {
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

#[derive(Debug, Default)]
struct Letters {
    arrived: VecDeque<Letter>,
    /// Buffers that senders write to.
    lent: usize,
    spare: Vec<Box<[u8]>>,
    /// Who found no room.
    turned_away: Vec<Weak<dyn Driven>>,
}

impl Inbox {
    pub(crate) fn of(device: &'static Device) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            device,
            receive_side: Mutex::default(),
            letters: Mutex::default(),
            place: Place::default(),
            alarm: Alarm::new(device.fabric, weak.clone()),
        })
    }

    /// A buffer for the payload of one burst, which is to be [sent](Self::send) or [given
    /// back](Self::give_back). If there is no room the sender gets another turn when there is.
    pub(crate) fn buffer<D: Driven + 'static>(&self, sender: &Arc<D>) -> Option<Box<[u8]>> {
        let mut letters = locked(&self.letters);
        if letters.arrived.len() + letters.lent >= BURSTS {
            let sender: Weak<dyn Driven> = Arc::<D>::downgrade(sender);
            if !letters.turned_away.iter().any(|other| Weak::ptr_eq(other, &sender)) {
                letters.turned_away.push(sender);
            }
            return None;
        }
        letters.lent += 1;
        let spare = letters.spare.pop();
        drop(letters);
        Some(spare.unwrap_or_else(|| vec![0; BURST_BYTES].into_boxed_slice()))
    }

    pub(crate) fn give_back(&self, buffer: Box<[u8]>) {
        let turned_away = {
            let mut letters = locked(&self.letters);
            letters.lent -= 1;
            letters.keep(buffer);
            std::mem::take(&mut letters.turned_away)
        };
        self.call_back(&turned_away);
    }

    /// There is room again for those who found none.
    fn call_back(&self, turned_away: &[Weak<dyn Driven>]) {
        for sender in turned_away.iter().filter_map(Weak::upgrade) {
            self.device.fabric.unsettled.note_turn_of(&sender);
        }
    }

    /// The payload of the burst is at the beginning of the buffer.
    pub(crate) fn send(
        self: &Arc<Self>,
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        payload: Box<[u8]>,
    ) {
        debug_assert!(burst.length as usize <= payload.len());
        {
            let mut letters = locked(&self.letters);
            letters.lent -= 1;
            letters.arrived.push_back(Letter { path, burst, datagram, payload });
        }
        self.device.fabric.unsettled.note_turn(self);
    }

    /// Waits until nobody executes packets that have arrived, and drops those for the queue pair with that
    /// number that were not. The caller holds no lock.
    pub(crate) fn pass(&self, number: u32) {
        let _receive_side = locked(&self.receive_side);
        let is_for = |letter: &Letter| letter.burst.header.bth.destination.get() == number;
        locked(&self.letters).arrived.retain(|letter| !is_for(letter));
    }
}

impl Letters {
    fn keep(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < SPARE {
            self.spare.push(buffer);
        }
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
            for _ in 0..TURN {
                let Some(letter) = locked(&self.letters).arrived.pop_front() else { break };
                wire::receive(self.device, &letter);
                locked(&self.letters).keep(letter.payload);
            }
        }
        let (more, turned_away) = {
            let letters = &mut *locked(&self.letters);
            let more = !letters.arrived.is_empty();
            (more, std::mem::take(&mut letters.turned_away))
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
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::fabric::Fabric;
    use crate::fabric::random::Seed;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::schedule::Schedule;

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

    /// Also if the room is given back unused, so that nothing arrives.
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
}
