//! How long to wait, and how.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// No limit: `Instant` cannot count so far.
pub(crate) const NO_LIMIT: Duration = Duration::MAX;

/// Between two looks at the clock.
const POLLS: u32 = 16;
/// After so many empty polls, some tens of microseconds, others may have the processor.
const SPINS: u32 = 1024;

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

    /// Whether it was waited for some time, so that others may have the processor, and a slow question may be asked.
    #[inline]
    pub(crate) const fn is_far(&self) -> bool {
        self.polls > SPINS
    }

    /// To be asked after each empty poll.
    #[cold]
    #[inline(never)]
    pub(crate) fn has_passed(&mut self) -> bool {
        let polls = self.polls;
        self.polls = polls.saturating_add(1);
        if polls < SPINS && !polls.is_multiple_of(POLLS) {
            hint::spin_loop();
            return false;
        }
        let now = Instant::now();
        if self.end.is_none() {
            self.end = now.checked_add(self.limit);
        }
        if polls >= SPINS {
            thread::yield_now();
        }
        self.end.is_some_and(|end| now >= end)
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
mod tests {
    use super::*;

    #[test]
    fn none_has_passed_at_once_and_all_time_never() {
        assert!(Deadline::new(Duration::ZERO).has_passed());
        let mut deadline = Deadline::new(NO_LIMIT);
        assert!((0..5000).all(|_| !deadline.has_passed()));
    }

    #[test]
    fn it_ends_after_its_limit() {
        let (limit, start) = (Duration::from_millis(20), Instant::now());
        let mut deadline = Deadline::new(limit);
        while !deadline.has_passed() {}
        assert!(start.elapsed() >= limit);
    }
}
