//! The timer after which a thread that polls lets other threads run. If the peer waits for the poller's processor, polling
//! on only delays the answer.

use std::time::Duration;

use crate::fabric::clock::Time;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The time without a message after which a poller yields. A peer with a processor of its own answers much sooner. The
/// kernel lets a thread run much longer.
const LIMIT: Duration = Duration::from_micros(50);
/// One poll in this many reads the clock.
const CLOCK_INTERVAL: u32 = 32;

/// The polls that found nothing. All pollers of a fabric share this, so a message for one of them restarts the wait of
/// all. Lost updates are harmless.
#[derive(Debug, Default)]
pub(super) struct YieldTimer {
    /// The number of polls since the last message.
    fruitless: AtomicU32,
    /// The time of the first clock reading after the last message, or of the last yield.
    since: AtomicU64,
}

impl YieldTimer {
    /// Records a poll that found a message.
    pub(super) fn restart(&self) {
        self.fruitless.store(0, Ordering::Relaxed);
    }

    /// Records a poll that found nothing. Returns true if the poller should let other threads run now.
    pub(super) fn is_over(&self, now: impl FnOnce() -> Time) -> bool {
        let fruitless = self.fruitless.load(Ordering::Relaxed).wrapping_add(1);
        self.fruitless.store(fruitless, Ordering::Relaxed);
        if !fruitless.is_multiple_of(CLOCK_INTERVAL) {
            return false;
        }
        let now = now();
        let since = Time::from_nanoseconds(self.since.load(Ordering::Relaxed));
        let is_first = fruitless == CLOCK_INTERVAL;
        let is_over = !is_first && now.since(since) >= LIMIT;
        if is_first || is_over {
            self.since.store(now.nanoseconds(), Ordering::Relaxed);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the polls that yield. Each poll takes the same time, from `begin` on.
    fn yields(timer: &YieldTimer, begin: Duration, each: Duration, polls: u32) -> Vec<u32> {
        let time = |poll: u32| {
            let time = begin + each * poll;
            Time::from_nanoseconds(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        (1..=polls).filter(|&poll| timer.is_over(|| time(poll))).collect()
    }

    #[test]
    fn a_poller_yields_each_time_the_timer_is_over() {
        let timer = YieldTimer::default();
        let (begin, each) = (Duration::from_secs(1), Duration::from_micros(1));
        assert_eq!(yields(&timer, begin, each, 200), [96, 160]);
        timer.restart();
        assert_eq!(yields(&timer, 2 * begin, each, 95), [0; 0], "a message came");
    }

    #[test]
    fn slow_polls_between_messages_are_not_a_wait() {
        let timer = YieldTimer::default();
        for round in 1..100 {
            assert_eq!(yields(&timer, Duration::from_secs(round), LIMIT, 32), [0; 0]);
            timer.restart();
        }
    }
}
