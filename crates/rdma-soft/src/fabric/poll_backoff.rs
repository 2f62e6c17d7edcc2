//! The backoff of a background thread that does the same work as polls. On one processor, two threads that do this work
//! are slower than one, and each wake-up of the thread interrupts the poller for a moment.

use std::time::Duration;

/// The first backoff.
const SHORTEST: Duration = Duration::from_micros(200);
/// A program that polls this often during the first backoff is assumed to do nothing but poll. A program that waits for
/// events polls only once or twice per event.
const POLLS: u32 = 16;
/// The longest backoff, used while the program keeps polling. If the program stops polling, a deadline or packet may be
/// handled up to this much late.
const LONGEST: Duration = Duration::from_millis(1);

/// The state of the backoff.
#[derive(Debug, Default)]
pub(crate) struct PollBackoff {
    /// The number of polls at the last check.
    polls: u32,
    /// The current backoff, or zero while the thread works.
    delay: Duration,
}

impl PollBackoff {
    /// Returns the next backoff. `polls` is the total number of polls so far.
    pub(crate) fn next(&mut self, polls: u32, long_polls: bool) -> Duration {
        let count = polls.wrapping_sub(std::mem::replace(&mut self.polls, polls));
        let times =
            u32::try_from(self.delay.as_micros() / SHORTEST.as_micros()).unwrap_or(1).max(1);
        // Polls that handle long messages take longer, so fewer of them suffice.
        let enough = POLLS * times / if long_polls { 4 } else { 1 };
        self.delay = match count < enough {
            true => Duration::ZERO,
            false => (2 * self.delay).clamp(SHORTEST, LONGEST),
        };
        self.delay
    }

    /// Ends the backoff because the polling thread is about to sleep. `polls` is the total number of polls so far.
    pub(crate) fn end(&mut self, polls: u32) {
        *self = Self { polls, delay: Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_while_a_program_polls_and_ends_when_it_does_not() {
        let mut backoff = PollBackoff::default();
        assert_eq!(
            backoff.next(POLLS - 1, false),
            Duration::ZERO,
            "as few as a program that waits for events makes"
        );
        let delay = [1, 2, 3, 4, 5].map(|n| backoff.next(1000 * n, false));
        assert_eq!(delay[..2], [SHORTEST, 2 * SHORTEST]);
        assert_eq!(delay[3..], [LONGEST; 2]);
        let mut polls = 5000 + POLLS;
        assert_eq!(backoff.next(polls, false), Duration::ZERO, "too few for that time");
        polls += POLLS;
        assert_eq!(backoff.next(polls, false), SHORTEST);
        polls += POLLS / 4;
        assert_eq!(backoff.next(polls, true), 2 * SHORTEST, "each of them took long");
        backoff.end(polls + 100);
        assert_eq!(backoff.next(polls + 100, false), Duration::ZERO);
    }
}
