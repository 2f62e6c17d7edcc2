//! Pauses between attempts to grow a pool.

use std::time::{Duration, Instant};

/// The time after which a pool that had no memory for a message is used again.
pub const RETRY: Duration = Duration::from_millis(100);

/// A length that a pool could not provide. It tries again to grow by this length, or more, only after [`RETRY`].
#[derive(Debug, Default)]
pub struct Shortage(Option<(usize, Instant)>);

impl Shortage {
    /// Returns true if the pool may try to grow by this length.
    #[must_use]
    pub fn may_grow(&self, length: usize, now: Instant) -> bool {
        self.0.is_none_or(|(limit, since)| {
            length < limit || now.saturating_duration_since(since) >= RETRY
        })
    }

    /// Notes that the pool could not grow by this length.
    pub const fn note(&mut self, length: usize, now: Instant) {
        self.0 = Some((length, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_could_not_grow_tries_again_after_a_pause() {
        let (now, mut shortage) = (Instant::now(), Shortage::default());
        assert!(shortage.may_grow(usize::MAX, now));
        shortage.note(1000, now);
        let soon = now + RETRY - Duration::from_nanos(1);
        let may_grow = |length, at| shortage.may_grow(length, at);
        assert!(may_grow(999, now) && !may_grow(1000, soon) && may_grow(1000, now + RETRY));
    }
}
