//! Time limits of waits, and ways to wait.

use std::hint;
use std::time::{Duration, Instant};

/// Means that there is no limit: no `Instant` is late enough to be the end of this duration.
pub(crate) const NO_LIMIT: Duration = Duration::MAX;

/// The way that a channel waits if polls have found nothing for some time.
///
/// It applies to all waits of the channel: blocking calls, `wait` of a handle, posts to a full queue, and the end of a
/// scope. It has no effect if there is nothing to wait for: a completion that has already arrived is returned at once.
///
/// # Examples
/// ```
/// use rdma_channel::{Wait, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd.create_channel().wait(Wait::Sleep).build()?;
/// let end = prepared.endpoint();
/// let channel = prepared.handshake(end)?; // to itself
/// assert!(channel.waitable().is_some()); // a channel that spins has no file
/// # Ok::<(), rdma_channel::TransportError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Polls until something completes. After the first 1,024 polls, the thread yields the processor between polls. The
    /// channel has no [completion channel](rdma_qp::CompletionChannel), and therefore no file.
    Spin,
    /// Polls 1,024 times, which takes some tens of microseconds, and then sleeps until something completes. Early
    /// completions are found as soon as with [`Spin`](Self::Spin), and waiting for late ones takes no processor time.
    #[default]
    SpinThenSleep,
    /// Sleeps after the first empty poll. Suits many threads on few processors.
    Sleep,
}

/// The number of polls between two reads of the clock.
const POLLS: u32 = 16;
/// The number of empty polls before the thread yields or sleeps. These polls take some tens of microseconds.
const SPINS: u32 = 1024;

impl Wait {
    /// Returns the number of empty polls before the thread yields or sleeps.
    const fn spins(self) -> u32 {
        match self {
            Self::Spin | Self::SpinThenSleep => SPINS,
            Self::Sleep => 0,
        }
    }
}

/// The deadline of all waits of a scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    end: Instant,
    limit: Duration,
}

impl Bound {
    /// Returns a bound that ends after `limit`; `None` if `Instant` cannot represent its end.
    pub(crate) fn from_now(limit: Duration) -> Option<Self> {
        Some(Self { end: Instant::now().checked_add(limit)?, limit })
    }
}

/// The next action after an empty poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Poll again at once.
    Poll,
    /// Yield or sleep, for at most this time if there is a limit. At this point, a slow check is acceptable.
    Rest(Option<Duration>),
    /// Stop: the deadline has passed.
    End,
}

/// The deadline of a wait. The time starts after the first [`POLLS`] empty polls, or before the first rest, so a short
/// wait does not read the clock. A limit of zero ends at the first empty poll, and another end after up to
/// [`POLLS`] of them.
#[derive(Debug)]
pub(crate) struct Deadline {
    limit: Duration,
    polls: u32,
    end: Option<Instant>,
}

impl Deadline {
    #[inline]
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, polls: 0, end: None }
    }

    /// Returns the deadline of a wait on a full queue. `None` if there is no limit, because a caller that never frees a
    /// slot would then hang.
    pub(crate) fn for_room(limit: Duration) -> Option<Self> {
        (limit != NO_LIMIT).then(|| Self::new(limit))
    }

    /// Returns true if this deadline can be used for a wait on a full queue; see [`for_room`](Self::for_room).
    pub(crate) fn is_for_room(&self) -> bool {
        self.limit != NO_LIMIT
    }

    /// Returns the deadline of a call that has already begun. `end` is the time at which the call must end.
    pub(crate) const fn until(limit: Duration, end: Option<Instant>) -> Self {
        Self { end, ..Self::new(limit) }
    }

    pub(crate) const fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the end of the wait, once the time has started.
    pub(crate) const fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Returns the next action after an empty poll. When the time starts, `bound` replaces the end and the limit of
    /// this deadline if it ends earlier.
    pub(crate) fn next(&mut self, wait: Wait, bound: Option<Bound>) -> Next {
        self.polls = self.polls.saturating_add(1);
        let is_due = self.polls.is_multiple_of(POLLS) || self.limit.is_zero();
        if self.polls <= wait.spins() && !is_due {
            hint::spin_loop();
            return Next::Poll;
        }
        self.check(wait, bound)
    }

    /// Returns the next action, like [`next`](Self::next), but always reads the clock. The last poll need not be empty.
    pub(crate) fn check(&mut self, wait: Wait, bound: Option<Bound>) -> Next {
        let now = Instant::now();
        if self.end.is_none() {
            self.end = now.checked_add(self.limit);
            if let Some(bound) = bound.filter(|bound| self.end.is_none_or(|end| bound.end < end)) {
                (self.end, self.limit) = (Some(bound.end), bound.limit);
            }
        }
        let left = self.end.map(|end| end.saturating_duration_since(now));
        match left {
            Some(Duration::ZERO) => Next::End,
            _ if self.polls <= wait.spins() => Next::Poll,
            _ => Next::Rest(left),
        }
    }
}

/// The deadline of a batch. Its limit is computed only when a wait begins.
#[derive(Debug)]
pub(crate) struct BatchDeadline {
    /// The limit; if `None`, the longest limit of the operations applies.
    limit: Option<Duration>,
    deadline: Option<Deadline>,
}

impl BatchDeadline {
    pub(crate) const fn new(limit: Option<Duration>) -> Self {
        Self { limit, deadline: None }
    }

    /// Returns the deadline. The time starts at the first call.
    #[cold]
    pub(crate) fn get(&mut self, longest: impl FnOnce() -> Duration) -> &mut Deadline {
        let limit = self.limit;
        self.deadline.get_or_insert_with(|| Deadline::new(limit.unwrap_or_else(longest)))
    }
}

#[cfg(test)]
#[allow(clippy::panic)] // a test
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_zero_ends_at_once_and_no_limit_never_ends() {
        for wait in [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep] {
            assert_eq!(Deadline::new(Duration::ZERO).next(wait, None), Next::End);
            let mut deadline = Deadline::new(NO_LIMIT);
            let rests = (0..5000).filter(|_| match deadline.next(wait, None) {
                Next::Poll => false,
                Next::Rest(left) => left.is_none(),
                Next::End => panic!("it has no end"),
            });
            assert_eq!(rests.count(), 5000 - wait.spins() as usize, "{wait:?}");
        }
    }

    #[test]
    fn a_short_wait_does_not_start_the_time() {
        let mut deadline = Deadline::new(Duration::from_nanos(1));
        for _ in 1..POLLS {
            assert_eq!((deadline.next(Wait::Spin, None), deadline.end()), (Next::Poll, None));
        }
        deadline.next(Wait::Spin, None);
        assert!(deadline.end().is_some());
    }

    #[test]
    fn it_ends_after_its_limit() {
        let (limit, start) = (Duration::from_millis(20), Instant::now());
        let mut deadline = Deadline::new(limit);
        loop {
            match deadline.next(Wait::Spin, None) {
                Next::Poll => {}
                Next::Rest(left) => assert!(left.is_some_and(|left| left <= limit)),
                Next::End => break,
            }
        }
        assert!(start.elapsed() >= limit);
    }

    #[test]
    fn a_wait_ends_at_the_earlier_of_its_limit_and_the_bound() {
        let minute = Duration::from_secs(60);
        let next = |limit, bound| {
            let mut deadline = Deadline::new(limit);
            (deadline.next(Wait::Sleep, Bound::from_now(bound)), deadline.limit())
        };
        assert_eq!(next(minute, Duration::ZERO), (Next::End, Duration::ZERO));
        assert_eq!(next(NO_LIMIT, Duration::ZERO), (Next::End, Duration::ZERO));
        assert_eq!(next(Duration::ZERO, minute), (Next::End, Duration::ZERO));
        assert_eq!(next(NO_LIMIT, NO_LIMIT), (Next::Rest(None), NO_LIMIT));
        let (Next::Rest(Some(left)), limit) = next(2 * minute, minute) else { panic!("a minute") };
        assert!(left <= minute && limit == minute);
    }
}
