//! Retransmission if no answer arrives.

use rdma_types::{AckTimeout, MaxAckRetries};

use crate::time::{Time, nanos};

/// The transport timer, the retry counter (IBTA section 9.7.6.1.3), and probes, which are sent
/// before the timer expires.
///
/// After a lost NAK, no answer arrives, because the responder sends only one NAK per gap. The same
/// happens after a lost retransmission. The timer ends this silence, but its timeout allows for the
/// slowest possible answer. Therefore, if nothing arrives for twice the recent response time, the
/// oldest packet alone is sent again, as a probe. The delay doubles with each further probe. If the
/// packet or its NAK was lost, the probe repairs the loss, and the packets that are sent next show
/// what else is missing. If the peer is only slow, it drops one duplicate, and nothing else is sent
/// again. Probes neither change the timer nor count as retries, so the specification's rules for
/// both still hold. mlx5 calls this adaptive retransmission.
#[derive(Debug)]
pub(super) struct Retry {
    /// The timeout, in nanoseconds.
    timeout: Option<u64>,
    limit: u8,
    /// The number of full retransmissions since the last progress.
    tries: u8,
    /// The number of probes since the last progress.
    probes: u8,
    /// Whether the oldest packet was sent again because an answer to a later packet showed that it
    /// is missing. Answers to the other packets in flight at that time would show the same gap, but
    /// one retransmission per gap is enough.
    repaired: bool,
    /// The time at which the current period without answers began, if anything is in flight.
    since: Option<Time>,
    /// Whether the timer has expired but does not count yet, because the caller checks whether the
    /// peer could have answered.
    held: bool,
    /// Whether probes are disabled, because the link never loses packets.
    without_probes: bool,
    /// A round ends when all packets that were in flight at its beginning are acknowledged. This is
    /// the number of such packets that are not acknowledged yet.
    round: u32,
    /// The time at which the round began.
    began: Time,
    /// The duration of the longest recent round, in nanoseconds; older rounds have less weight.
    longest: u64,
}

/// The minimum time before a probe, in nanoseconds.
const EARLIEST_PROBE: u64 = 250_000;

/// The action after a period without answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeoutAction {
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

    /// Changes the limits. A new timeout starts now.
    pub(super) fn set_limits(&mut self, now: Time, timeout: AckTimeout, limit: MaxAckRetries) {
        let timeout = timeout.duration().map(nanos);
        if timeout != self.timeout {
            self.since = self.since.map(|_| now);
            self.held = false;
        }
        (self.timeout, self.limit) = (timeout, limit.retries());
    }

    /// Starts the timer because a packet is in flight, unless the timer is already running.
    #[inline]
    pub(super) fn start(&mut self, now: Time) {
        if self.since.is_none() {
            self.since = Some(now);
            if self.round == 0 {
                (self.began, self.round) = (now, 1);
            }
        }
    }

    /// Resets the state after an acknowledgement of `packets` packets; `under_way` packets are
    /// still in flight.
    #[inline]
    pub(super) fn progress(&mut self, now: Time, packets: u32, under_way: u32) {
        (self.tries, self.probes, self.repaired) = (0, 0, false);
        self.since = (under_way > 0).then_some(now);
        self.held = false;
        self.round = self.round.saturating_sub(packets);
        if self.round == 0 {
            // If packets were retransmitted in this round, the measured time is too long, but never
            // too short.
            let took = now.since(self.began);
            self.longest = took.max(self.longest.wrapping_sub(self.longest >> 2));
            (self.began, self.round) = (now, under_way);
        }
    }

    /// Resets the state after an RNR NAK: the peer is alive, but nothing may be sent to it for a
    /// while.
    pub(super) const fn alive(&mut self) {
        (self.tries, self.probes, self.repaired) = (0, 0, false);
        self.stop();
    }

    /// Prepares to retransmit everything without counting a retry. A new round begins with the next
    /// packet.
    pub(super) const fn again(&mut self) {
        self.probes = 0;
        self.stop();
    }

    /// Stops the timer, because nothing is in flight.
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

    /// Holds the expired timer, so that it does not count yet.
    pub(super) const fn hold(&mut self) {
        self.held = true;
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    /// Records a timeout. If a packet is found to be missing from now on, it is sent again.
    pub(super) const fn count_timeout(&mut self) {
        self.repaired = false;
    }

    pub(super) const fn has_timeout(&self) -> bool {
        self.timeout.is_some()
    }

    /// Returns when to call [`due_action`](Self::due_action).
    pub(super) fn deadline(&self) -> Option<Time> {
        let (since, timeout) = (self.since.filter(|_| !self.held)?, self.timeout?);
        Some(since.plus(timeout.min(self.probe_delay())))
    }

    /// Returns how long to wait without answers before the next probe.
    fn probe_delay(&self) -> u64 {
        if self.longest == 0 || self.without_probes {
            return u64::MAX;
        }
        let first = self.longest.saturating_mul(2).max(EARLIEST_PROBE);
        first.saturating_mul(1 << self.probes.min(32))
    }

    /// Returns the action that is due now.
    pub(super) fn due_action(&mut self, now: Time) -> TimeoutAction {
        let since = self.since.filter(|_| !self.held);
        let (Some(since), Some(timeout)) = (since, self.timeout) else {
            return TimeoutAction::Wait;
        };
        let silent = now.since(since);
        if silent >= timeout {
            self.count_timeout();
            TimeoutAction::TimedOut
        } else if silent >= self.probe_delay() {
            self.probes = self.probes.saturating_add(1);
            TimeoutAction::Probe
        } else {
            TimeoutAction::Wait
        }
    }

    /// Reacts to a missing packet. Returns whether to retransmit, or `None` if the packet was
    /// already sent again.
    pub(super) fn missing(&mut self) -> Option<bool> {
        if self.repaired {
            return None;
        }
        self.repaired = true;
        // A new round begins with the next packet that is sent.
        self.round = 0;
        Some(self.count_retransmission())
    }

    /// Counts a full retransmission. Returns true if it is allowed. A limit of 7 means seven
    /// retries here, although it means no limit for RNR retries.
    pub(super) const fn count_retransmission(&mut self) -> bool {
        (self.since, self.probes, self.held) = (None, 0, false);
        let again = self.tries < self.limit;
        self.tries = self.tries.saturating_add(1);
        again
    }
}
