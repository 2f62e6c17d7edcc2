//! When nothing comes back.

use rdma_types::{AckTimeout, MaxAckRetries};

use crate::time::{Time, nanos};

/// The transport timer and the retry counter (IBTA section 9.7.6.1.3), and probes that come
/// before the timer expires.
///
/// A lost NAK is followed by silence, since the responder sends one for each gap, and so is a retransmission
/// that is lost. The timer ends it, but it is set for the slowest answer that there may ever be. So the oldest
/// packet is sent again, alone, when nothing has come back for twice as long as answers took lately; and once
/// more after twice that time, and so on. If the packet was lost, or its NAK, this repairs it, and what is sent next
/// shows what else is missing. If the peer is only slow, it drops a duplicate, and nothing else is sent again. The
/// timer is not touched, and no retry is counted: what the specification says of them holds as if there were no
/// probes. mlx5 calls it adaptive retransmission.
#[derive(Debug)]
pub(super) struct Retry {
    /// In nanoseconds.
    timeout: Option<u64>,
    limit: u8,
    /// How often all was sent again since something was taken.
    tries: u8,
    /// How many probes were sent since then.
    probes: u8,
    /// Whether the oldest packet has been sent again since it was found missing by what came behind it.
    /// All that is still in flight from before would find the same: once per gap is enough.
    repaired: bool,
    /// Since when nothing has come back, if something is in flight.
    since: Option<Time>,
    /// The timer has run out and is not counted yet: the caller finds out whether the peer could have answered.
    held: bool,
    /// No probes are sent: nothing is lost on the way.
    without_probes: bool,
    /// A round ends when so many packets more are acknowledged: those that were in flight when it began.
    round: u32,
    began: Time,
    /// How long rounds take, in nanoseconds: the longest, but the older, the less.
    longest: u64,
}

/// A probe is not sent earlier than this, in nanoseconds.
const EARLIEST_PROBE: u64 = 250_000;

/// What to do when nothing has come back for a while.
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

    /// Another timeout counts from now on.
    pub(super) fn set_limits(&mut self, now: Time, timeout: AckTimeout, limit: MaxAckRetries) {
        let timeout = timeout.duration().map(nanos);
        if timeout != self.timeout {
            self.since = self.since.map(|_| now);
            self.held = false;
        }
        (self.timeout, self.limit) = (timeout, limit.retries());
    }

    /// Something is in flight: the timer runs, unless it does already.
    #[inline]
    pub(super) fn start(&mut self, now: Time) {
        if self.since.is_none() {
            self.since = Some(now);
            if self.round == 0 {
                (self.began, self.round) = (now, 1);
            }
        }
    }

    /// The peer has taken so many packets: all begins anew, with those that are still in flight.
    #[inline]
    pub(super) fn progress(&mut self, now: Time, packets: u32, under_way: u32) {
        (self.tries, self.probes, self.repaired) = (0, 0, false);
        self.since = (under_way > 0).then_some(now);
        self.held = false;
        self.round = self.round.saturating_sub(packets);
        if self.round == 0 {
            // If something was sent again meanwhile, that is too long, but never too short.
            let took = now.since(self.began);
            self.longest = took.max(self.longest.wrapping_sub(self.longest >> 2));
            (self.began, self.round) = (now, under_way);
        }
    }

    /// The peer lives, although it took nothing, and is not to be sent anything for a while.
    pub(super) const fn alive(&mut self) {
        (self.tries, self.probes, self.repaired) = (0, 0, false);
        self.stop();
    }

    /// All is sent again after progress: what is taken next will have been sent from now on.
    pub(super) const fn again(&mut self) {
        self.probes = 0;
        self.stop();
    }

    /// Nothing is in flight any more.
    pub(super) const fn stop(&mut self) {
        (self.since, self.round, self.held) = (None, 0, false);
    }

    /// Sends no probes.
    pub(super) const fn forgo_probes(&mut self) {
        self.without_probes = true;
    }

    /// Whether the timer has run out, and is not held.
    pub(super) fn has_run_out(&self, now: Time) -> bool {
        let silent = self.since.map(|since| now.since(since));
        let in_time = |(silent, timeout)| silent < timeout;
        !self.held && !silent.zip(self.timeout).is_none_or(in_time)
    }

    /// The timer has run out, which is counted later, or not at all.
    pub(super) const fn hold(&mut self) {
        self.held = true;
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    /// A silence is counted: a packet that is found missing from now on is sent again.
    pub(super) const fn count_silence(&mut self) {
        self.repaired = false;
    }

    pub(super) const fn has_timeout(&self) -> bool {
        self.timeout.is_some()
    }

    /// When [`silence`](Self::silence) has something to say.
    pub(super) fn deadline(&self) -> Option<Time> {
        let (since, timeout) = (self.since.filter(|_| !self.held)?, self.timeout?);
        Some(since.plus(timeout.min(self.patience())))
    }

    /// How long nothing comes back until the next probe is sent.
    fn patience(&self) -> u64 {
        if self.longest == 0 || self.without_probes {
            return u64::MAX;
        }
        let first = self.longest.saturating_mul(2).max(EARLIEST_PROBE);
        first.saturating_mul(1 << self.probes.min(32))
    }

    /// What is to be done at that time.
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

    /// A packet is missing, as what came shows. Says whether to try again; `None` if that is done already.
    pub(super) fn missing(&mut self) -> Option<bool> {
        if self.repaired {
            return None;
        }
        self.repaired = true;
        // What is taken next will have been sent from now on.
        self.round = 0;
        Some(self.once_more())
    }

    /// All is to be sent again. Says whether it may: seven times is seven here, unlike for "receiver not
    /// ready".
    pub(super) const fn once_more(&mut self) -> bool {
        (self.since, self.probes, self.held) = (None, 0, false);
        let again = self.tries < self.limit;
        self.tries = self.tries.saturating_add(1);
        again
    }
}
