//! How many packets may be in flight.

use crate::time::Time;

/// A window: says how many request packets may be in flight, unacknowledged.
///
/// [`Fixed`] is what a requester has unless it is given another. A congestion control, such as
/// DCQCN, is another: it is informed of what happens to packets.
pub trait Window {
    /// How many request packets may be in flight. A READ or an atomic counts as one. At least one
    /// always may.
    fn packets(&self) -> u32;

    /// So many of them were acknowledged, by a packet that met congestion or carried the news of it (BECN),
    /// or did not.
    fn acknowledged(&mut self, now: Time, packets: u32, congested: bool) {
        let _ = (now, packets, congested);
    }

    /// Packets have to be sent again, since one got lost.
    fn lost(&mut self, now: Time) {
        let _ = now;
    }
}

/// A window that stays as it is: 80 packets by default. When a packet gets lost, all that is in
/// flight behind it is sent again (go-back-N). So at 1 % of loss a window of *n* leaves about 100 /
/// (100 + *n*) of what is there without loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed(pub u32);

impl Default for Fixed {
    fn default() -> Self {
        Self(80)
    }
}

impl Window for Fixed {
    fn packets(&self) -> u32 {
        self.0
    }
}

/// The most PSNs from the oldest that is unacknowledged to the newest (IBTA chapter 9, packet
/// sequence numbers): half of all, so that old and new can be distinguished.
pub(super) const MOST_PSNS: u32 = 1 << 23;

/// A run of packets ends with a request for an acknowledgement if so many have gone without one, if the window
/// is larger than four times that; else a quarter of it. Of a window that is larger than this no more than half goes
/// without one, and of another no more than a quarter.
const UNASKED: u32 = 64;

/// What is in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Request packets since the last time that all was sent again.
    pub(super) packets: u32,
    /// READs and atomics among them.
    pub(super) fetches: u32,
    /// Packets since the last one that asks for an acknowledgement.
    unasked: u32,
}

impl InFlight {
    /// As if one more packet might be sent.
    pub(super) fn all_but_one(window: u32) -> Self {
        Self { packets: window.saturating_sub(1), ..Self::default() }
    }

    /// How many packets of SENDs and WRITEs may be sent now in one run.
    #[inline]
    pub(super) fn most(&self, window: u32) -> u32 {
        let free = window.max(1).saturating_sub(self.packets);
        let unasked = if window > UNASKED { window >> 1 } else { Self::interval(window) };
        free.min(unasked.saturating_sub(self.unasked).max(1))
    }

    #[inline]
    fn interval(window: u32) -> u32 {
        (window >> 2).clamp(1, UNASKED)
    }

    /// Such packets are sent. Says whether the last one has to ask for an acknowledgement: so that the
    /// window opens before it is used up. One that ends a message asks anyway.
    #[inline]
    pub(super) fn sent(&mut self, packets: u32, ends_message: bool, window: u32) -> bool {
        self.packets = self.packets.saturating_add(packets);
        self.unasked = self.unasked.saturating_add(packets);
        let asks = ends_message || self.unasked >= Self::interval(window) || self.packets >= window;
        if asks {
            self.unasked = 0;
        }
        asks
    }

    /// So many packets of SENDs and WRITEs were acknowledged.
    pub(super) fn acknowledged(&mut self, packets: u32) {
        self.packets = self.packets.saturating_sub(packets);
    }

    /// A READ or an atomic is done.
    pub(super) fn fetched(&mut self) {
        self.fetches = self.fetches.saturating_sub(1);
        self.acknowledged(1);
    }
}
