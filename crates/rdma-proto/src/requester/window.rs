//! Limits on the packets in flight.

use crate::time::Time;

/// Limits the number of unacknowledged request packets in flight.
///
/// [`Fixed`] is the default. A congestion control algorithm, such as DCQCN, can be another
/// implementation: the requester notifies it when packets are acknowledged or lost.
pub trait Window {
    /// Returns how many request packets may be in flight. A READ or an atomic counts as one. One
    /// packet is always allowed.
    fn packets(&self) -> u32;

    /// Called when this many packets were acknowledged. `congested` is true if the acknowledging
    /// packet itself met congestion (FECN) or reports congestion (BECN).
    fn acknowledged(&mut self, now: Time, packets: u32, congested: bool) {
        let _ = (now, packets, congested);
    }

    /// Called when packets must be sent again because one was lost.
    fn lost(&mut self, now: Time) {
        let _ = now;
    }
}

/// A window of constant size: 80 packets by default. When a packet is lost, everything in flight
/// after it is sent again (go-back-N). At 1 % loss, a window of *n* packets therefore leaves about
/// 100 / (100 + *n*) of the loss-free throughput.
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

/// The maximum number of PSNs from the oldest unacknowledged packet to the newest (IBTA chapter 9,
/// packet sequence numbers). It is half of all PSNs, so that old and new ones can be distinguished.
pub(super) const MOST_PSNS: u32 = 1 << 23;

/// The number of packets after which an acknowledgement is requested. In a window of less than four
/// times this number, it is a quarter of the window. Only the last packet of a run can request one,
/// so the distance between two requests can be longer. It is at most half the window or, in a
/// window of at most this number, a quarter.
const LONGEST_INTERVAL: u32 = 64;

/// Counts the packets in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Request packets in flight since the last full retransmission.
    pub(super) packets: u32,
    /// READs and atomics among these packets.
    pub(super) fetches: u32,
    /// Packets sent since the last one that requested an acknowledgement.
    since_request: u32,
}

impl InFlight {
    /// Returns a state in which only one more packet may be sent.
    pub(super) fn all_but_one(window: u32) -> Self {
        Self { packets: window.saturating_sub(1), ..Self::default() }
    }

    /// Returns how many SEND or WRITE packets may be sent now in one run.
    #[inline]
    pub(super) fn most(&self, window: u32) -> u32 {
        let free = window.max(1).saturating_sub(self.packets);
        let allowed = if window > LONGEST_INTERVAL { window >> 1 } else { Self::interval(window) };
        free.min(allowed.saturating_sub(self.since_request).max(1))
    }

    #[inline]
    fn interval(window: u32) -> u32 {
        (window >> 2).clamp(1, LONGEST_INTERVAL)
    }

    /// Counts sent packets. Returns true if the last one must request an acknowledgement, so that
    /// the window opens again before it is full. The last packet of a message always requests one.
    #[inline]
    pub(super) fn sent(&mut self, packets: u32, ends_message: bool, window: u32) -> bool {
        self.packets = self.packets.saturating_add(packets);
        self.since_request = self.since_request.saturating_add(packets);
        let asks =
            ends_message || self.since_request >= Self::interval(window) || self.packets >= window;
        if asks {
            self.since_request = 0;
        }
        asks
    }

    /// Counts acknowledged SEND and WRITE packets.
    pub(super) fn acknowledged(&mut self, packets: u32) {
        self.packets = self.packets.saturating_sub(packets);
    }

    /// Counts a completed READ or atomic.
    pub(super) fn fetched(&mut self) {
        self.fetches = self.fetches.saturating_sub(1);
        self.acknowledged(1);
    }
}
