//! The backoff of a background thread that does the same work as polls. Two such threads on one processor are slower
//! than one, and each wake-up takes the poller's processor for a moment.

use std::time::Duration;

/// The first backoff.
const SHORTEST: Duration = Duration::from_micros(200);
/// The number of polls in that time that shows that a program does nothing but poll. A program that waits for events
/// polls once or twice per event.
const POLLS: u32 = 16;
/// The longest backoff, which applies while the program keeps polling. If it stops, a deadline or packet may be late by
/// at most this.
const LONGEST: Duration = Duration::from_millis(1);

/// The state of the backoff.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// The number of polls at the last check.
    polls: u32,
    /// The current backoff; zero while the thread works.
    away: Duration,
}

impl Rest {
    /// Returns the next backoff, after `polls` polls in total.
    pub(crate) fn next(&mut self, polls: u32, long_polls: bool) -> Duration {
        let count = polls.wrapping_sub(std::mem::replace(&mut self.polls, polls));
        let times = u32::try_from(self.away.as_micros() / SHORTEST.as_micros()).unwrap_or(1).max(1);
        // Polls that handle long messages take long, so that fewer are enough.
        let enough = POLLS * times / if long_polls { 4 } else { 1 };
        self.away = match count < enough {
            true => Duration::ZERO,
            false => (2 * self.away).clamp(SHORTEST, LONGEST),
        };
        self.away
    }

    /// Ends the backoff, because the polling thread is about to sleep after `polls` polls in total.
    pub(crate) fn end(&mut self, polls: u32) {
        *self = Self { polls, away: Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_while_a_program_polls_and_ends_when_it_does_not() {
        let mut rest = Rest::default();
        assert_eq!(
            rest.next(POLLS - 1, false),
            Duration::ZERO,
            "as few as a program that waits for events makes"
        );
        let away = [1, 2, 3, 4, 5].map(|n| rest.next(1000 * n, false));
        assert_eq!(away[..2], [SHORTEST, 2 * SHORTEST]);
        assert_eq!(away[3..], [LONGEST; 2]);
        let mut polls = 5000 + POLLS;
        assert_eq!(rest.next(polls, false), Duration::ZERO, "too few for that time");
        polls += POLLS;
        assert_eq!(rest.next(polls, false), SHORTEST);
        polls += POLLS / 4;
        assert_eq!(rest.next(polls, true), 2 * SHORTEST, "each of them took long");
        rest.end(polls + 100);
        assert_eq!(rest.next(polls + 100, false), Duration::ZERO);
    }
}
