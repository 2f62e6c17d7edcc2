//! How long to wait, and how.

use std::hint;
use std::time::{Duration, Instant};

/// No limit: `Instant` cannot count so far.
pub(crate) const NO_LIMIT: Duration = Duration::MAX;

/// What a channel does while it waits, when it has found nothing for some time.
///
/// It is so wherever the channel waits: in blocking calls, in `wait` of a handle, in a post for which
/// the queue has no free slot, and at the end of a scope. A completion that is there is taken without
/// any of it.
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
/// assert!(channel.waitable().is_some()); // one that spins has no file
/// # Ok::<(), rdma_channel::TransportError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Polls without end, and lets other threads have the processor in between, after the first 1,024
    /// polls. The channel has no [completion channel](rdma_qp::CompletionChannel), and so no file.
    Spin,
    /// Polls 1,024 times, some tens of microseconds, and then sleeps until something completes. What comes
    /// soon is found as soon as by [`Spin`](Self::Spin), and what comes late costs no processor.
    #[default]
    SpinThenSleep,
    /// Sleeps at the first poll that finds nothing: for many threads on few processors.
    Sleep,
}

/// Between two looks at the clock.
const POLLS: u32 = 16;
/// After so many empty polls, some tens of microseconds, others may have the processor.
const SPINS: u32 = 1024;

impl Wait {
    /// After how many empty polls others may have the processor.
    const fn spins(self) -> u32 {
        match self {
            Self::Spin | Self::SpinThenSleep => SPINS,
            Self::Sleep => 0,
        }
    }
}

/// When all waits of a scope end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    end: Instant,
    limit: Duration,
}

impl Bound {
    /// So long from now; none, if that is longer than `Instant` can count.
    pub(crate) fn from_now(limit: Duration) -> Option<Self> {
        Some(Self { end: Instant::now().checked_add(limit)?, limit })
    }
}

/// What comes after an empty poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another one, at once.
    Poll,
    /// Others may have the processor, for no longer than that, if there is a limit; and a slow question may be asked.
    Rest(Option<Duration>),
    /// Nothing: the deadline has passed.
    End,
}

/// The end of a wait, whose time begins with the first empty poll: until then, the clock is not read.
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

    /// For a queue that is full: never without a limit, since a caller that has forgotten what is in it would hang.
    pub(crate) fn for_room(limit: Duration) -> Option<Self> {
        (limit != NO_LIMIT).then(|| Self::new(limit))
    }

    /// The same of one that is there.
    pub(crate) fn is_for_room(&self) -> bool {
        self.limit != NO_LIMIT
    }

    /// Of a call that has begun, with the end that it has.
    pub(crate) const fn until(limit: Duration, end: Option<Instant>) -> Self {
        Self { end, ..Self::new(limit) }
    }

    pub(crate) const fn limit(&self) -> Duration {
        self.limit
    }

    /// When it ends, if it has begun.
    pub(crate) const fn end(&self) -> Option<Instant> {
        self.end
    }

    /// To be asked after each empty poll. If there is a bound that is earlier, it ends by that, whose limit is then its own.
    pub(crate) fn next(&mut self, wait: Wait, bound: Option<Bound>) -> Next {
        let (polls, spins) = (self.polls, wait.spins());
        self.polls = polls.saturating_add(1);
        if polls < spins && !polls.is_multiple_of(POLLS) {
            hint::spin_loop();
            return Next::Poll;
        }
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
            _ if polls < spins => Next::Poll,
            _ => Next::Rest(left),
        }
    }
}

/// The deadline of a batch, whose limit is not looked for before somebody has to wait.
#[derive(Debug)]
pub(crate) struct BatchDeadline {
    /// If it is not given, it is the longest of the operations.
    limit: Option<Duration>,
    deadline: Option<Deadline>,
}

impl BatchDeadline {
    pub(crate) const fn new(limit: Option<Duration>) -> Self {
        Self { limit, deadline: None }
    }

    /// The deadline, whose time begins with the first call.
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
    fn none_has_passed_at_once_and_all_time_never() {
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
    fn a_bound_ends_what_would_be_longer_and_nothing_else() {
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
