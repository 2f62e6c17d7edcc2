//! The time that messages between ranks take.

use std::collections::HashMap;

use fastrand::Rng;

/// Virtual time in nanoseconds.
pub(super) type Time = u64;

/// The time between the end of a send and the arrival of the message.
pub(super) const LATENCY: Time = 2_000;
/// The time in which a rank posts a send, or receives a message.
pub(super) const OVERHEAD: Time = 250;
/// The bytes that a rank sends in two nanoseconds: 100 Gbit/s.
pub(super) const BYTES_IN_TWO: Time = 25;

/// The connections of all ranks.
pub(super) struct Network {
    /// The random source of delays; without it, all messages have the same latency.
    delays: Option<Rng>,
    /// The arrival of the last message of each connection. Messages never overtake each other.
    last: HashMap<(usize, usize), Time>,
}

impl Network {
    pub(super) fn new(delays: Option<Rng>) -> Self {
        Self { delays, last: HashMap::new() }
    }

    /// Returns the time in which a rank sends a message.
    pub(super) fn sending(bytes: usize) -> Time {
        OVERHEAD + (2 * bytes as Time).div_ceil(BYTES_IN_TWO)
    }

    /// Returns the arrival of a message that is sent now.
    pub(super) fn arrival(&mut self, now: Time, from: usize, to: usize) -> Time {
        let delay = self.delays.as_mut().map_or(0, |rng| rng.u64(0..20 * LATENCY));
        let last = self.last.entry((from, to)).or_default();
        *last = (*last).max(now + LATENCY + delay);
        *last
    }

    /// Returns a random time after which a rank checks for notices.
    pub(super) fn until_check(&mut self) -> Time {
        self.delays.as_mut().map_or(0, |rng| rng.u64(0..CHECK))
    }
}

/// The time between two checks for notices.
const CHECK: Time = 20_000_000;
