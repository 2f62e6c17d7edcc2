//! Retransmission when no answer arrives.

use rdma_types::{AckTimeout, MaxAckRetries};

use crate::time::{Time, nanos};

/// The transport timer and the retry counter (IBTA section 9.7.6.1.3), and probes that precede the timer's expiry.
///
/// A lost NAK is followed by silence, since the responder sends only one per gap, and so is a lost retransmission. The
/// timer ends the silence, but its timeout is chosen for the slowest possible answer. So the oldest packet is sent
/// again, alone, when nothing has arrived for twice the recent response time. The next probe follows after twice that
/// time, and so on. If the packet or its NAK was lost, this repairs it, and the packets that are sent next show what
/// else is missing. If the peer is only slow, it drops a duplicate, and nothing else is sent again. Probes do not
/// change the timer and count no retry, so the specification's rules for both hold unchanged. mlx5 calls this adaptive
/// retransmission.
#[derive(Debug)]
pub(super) struct Retry {
    /// In nanoseconds.
    timeout: Option<u64>,
    limit: u8,
    /// The number of full retransmissions since the last progress.
    tries: u8,
    /// The number of probes since then.
    probes: u8,
    /// Whether the oldest packet was sent again because a later packet showed that it is missing. All other packets
    /// that are still in flight from before would show the same: once per gap is enough.
    repaired: bool,
    /// The time since when no answer has arrived, if anything is in flight.
    since: Option<Time>,
    /// Whether the timer has expired but is not counted yet: the caller checks whether the peer could have answered.
    held: bool,
    /// Whether probes are disabled, because the link loses nothing.
    without_probes: bool,
    /// The number of packets to acknowledge until the round ends: those in flight when it began.
    round: u32,
    began: Time,
    /// The duration of the longest recent round, in nanoseconds; older rounds count less.
    longest: u64,
}

/// The shortest time before a probe, in nanoseconds.
const EARLIEST_PROBE: u64 = 250_000;

/// The reaction to a period without answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Silence {
    Wait,
    Probe,
    TimedOut,
}

impl Retry {
    pub(super) fn new(timeout: AckTimeout, limit: MaxAckRetries) -> Self {
        Self {
            timeout: timeout.duration().map(nanos),
            limit: limit.retries(),
            tries: 0,
            probes: 0,
            repaired: false,
            since: None,
            held: false,
            without_probes: false,
            round: 0,
            began: Time::default(),
            longest: 0,
        }
    }

    /// Changes the limits. A new timeout counts from now on.
    pub(super) fn set_limits(&mut self, now: Time, timeout: AckTimeout, limit: MaxAckRetries) {
        let timeout = timeout.duration().map(nanos);
        if timeout != self.timeout {
            self.since = self.since.map(|_| now);
            self.held = false;
        }
        (self.timeout, self.limit) = (timeout, limit.retries());
    }

    /// Starts the timer, unless it already runs: a packet is in flight.
    #[inline]
    pub(super) fn start(&mut self, now: Time) {
        if self.since.is_none() {
            self.since = Some(now);
            if self.round == 0 {
                (self.began, self.round) = (now, 1);
            }
        }
    }

    /// Resets the state after an acknowledgement of `packets` packets; `under_way` are still in flight.
    #[inline]
    pub(super) fn progress(&mut self, now: Time, packets: u32, under_way: u32) {
        (self.tries, self.probes, self.repaired) = (0, 0, false);
        self.since = (under_way > 0).then_some(now);
        self.held = false;
        self.round = self.round.saturating_sub(packets);
        if self.round == 0 {
            // After a retransmission in this round the value is too long, but never too short.
            let took = now.since(self.began);
            self.longest = took.max(self.longest.wrapping_sub(self.longest >> 2));
            (self.began, self.round) = (now, under_way);
        }
    }

    /// Resets the state: the peer is alive, although it accepted nothing, and must not be sent anything for a while.
    pub(super) const fn alive(&mut self) {
        (self.tries, self.probes, self.repaired) = (0, 0, false);
        self.stop();
    }

    /// Prepares for sending everything again after progress: later acknowledgements are for packets sent from now on.
    pub(super) const fn again(&mut self) {
        self.probes = 0;
        self.stop();
    }

    /// Stops the timer: nothing is in flight any more.
    pub(super) const fn stop(&mut self) {
        (self.since, self.round, self.held) = (None, 0, false);
    }

    /// Disables probes.
    pub(super) const fn forgo_probes(&mut self) {
        self.without_probes = true;
    }

    /// Returns true if the timer has expired and is not held.
    pub(super) fn has_run_out(&self, now: Time) -> bool {
        let silent = self.since.map(|since| now.since(since));
        let in_time = |(silent, timeout)| silent < timeout;
        !self.held && !silent.zip(self.timeout).is_none_or(in_time)
    }

    /// Holds the expired timer: it is counted later, or not at all.
    pub(super) const fn hold(&mut self) {
        self.held = true;
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    /// Counts a timeout: a packet that is found missing from now on is sent again.
    pub(super) const fn count_silence(&mut self) {
        self.repaired = false;
    }

    pub(super) const fn has_timeout(&self) -> bool {
        self.timeout.is_some()
    }

    /// Returns the time at which [`silence`](Self::silence) has to be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        let (since, timeout) = (self.since.filter(|_| !self.held)?, self.timeout?);
        Some(since.plus(timeout.min(self.patience())))
    }

    /// Returns the time without answers after which the next probe is sent.
    fn patience(&self) -> u64 {
        if self.longest == 0 || self.without_probes {
            return u64::MAX;
        }
        let first = self.longest.saturating_mul(2).max(EARLIEST_PROBE);
        first.saturating_mul(1 << self.probes.min(32))
    }

    /// Returns the action that is due now.
    pub(super) fn silence(&mut self, now: Time) -> Silence {
        let since = self.since.filter(|_| !self.held);
        let (Some(since), Some(timeout)) = (since, self.timeout) else { return Silence::Wait };
        let silent = now.since(since);
        if silent >= timeout {
            self.count_silence();
            Silence::TimedOut
        } else if silent >= self.patience() {
            self.probes = self.probes.saturating_add(1);
            Silence::Probe
        } else {
            Silence::Wait
        }
    }

    /// Reacts to a missing packet. Returns whether to retry; `None` if it was already sent again.
    pub(super) fn missing(&mut self) -> Option<bool> {
        if self.repaired {
            return None;
        }
        self.repaired = true;
        // Later acknowledgements are for packets sent from now on.
        self.round = 0;
        Some(self.once_more())
    }

    /// Counts a retransmission of everything. Returns true if it is allowed. A limit of 7 means seven times here,
    /// unlike for "receiver not ready".
    pub(super) const fn once_more(&mut self) -> bool {
        (self.since, self.probes, self.held) = (None, 0, false);
        let again = self.tries < self.limit;
        self.tries = self.tries.saturating_add(1);
        again
    }
}
