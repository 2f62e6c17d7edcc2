//! How long a thread stays away that does what whoever polls does, too: two of them on one processor are slower than one,
//! and each time that it wakes up takes the poller's processor for a moment.

use std::time::Duration;

/// How long it stays away at first.
const SHORTEST: Duration = Duration::from_micros(200);
/// So many polls in that time are those of a program that does nothing else. One that waits for events polls once or
/// twice for each.
const POLLS: u32 = 16;
/// How long, if the program has polled all the time meanwhile. A deadline that passes when it has just ceased to poll is
/// late by so much, at most, and a packet that comes then.
const LONGEST: Duration = Duration::from_millis(1);

/// What a thread knows of who polls.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// How many polls there were when it last looked.
    polls: u32,
    /// How long it has been away since: nothing if it was to be there.
    away: Duration,
}

impl Rest {
    /// How long it is to stay away, now that there were so many polls in all.
    pub(crate) fn next(&mut self, polls: u32, long_polls: bool) -> Duration {
        let count = polls.wrapping_sub(std::mem::replace(&mut self.polls, polls));
        let times = u32::try_from(self.away.as_micros() / SHORTEST.as_micros()).unwrap_or(1).max(1);
        // A poll that takes long messages takes long itself.
        let enough = POLLS * times / if long_polls { 4 } else { 1 };
        self.away = match count < enough {
            true => Duration::ZERO,
            false => (2 * self.away).clamp(SHORTEST, LONGEST),
        };
        self.away
    }

    /// Whoever polls is about to sleep, after so many polls in all.
    pub(crate) fn end(&mut self, polls: u32) {
        *self = Self { polls, away: Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_away_longer_while_a_program_polls_and_is_there_when_it_does_not() {
        let mut rest = Rest::default();
        assert_eq!(
            rest.next(POLLS - 1, false),
            Duration::ZERO,
            "as many as a program that waits for events has"
        );
        let away = [1, 2, 3, 4, 5].map(|n| rest.next(1000 * n, false));
        assert_eq!(away[..2], [SHORTEST, 2 * SHORTEST]);
        assert_eq!(away[3..], [LONGEST; 2]);
        let mut polls = 5000 + POLLS;
        assert_eq!(rest.next(polls, false), Duration::ZERO, "few for so long a time");
        polls += POLLS;
        assert_eq!(rest.next(polls, false), SHORTEST);
        polls += POLLS / 4;
        assert_eq!(rest.next(polls, true), 2 * SHORTEST, "each of them took long");
        rest.end(polls + 100);
        assert_eq!(rest.next(polls + 100, false), Duration::ZERO);
    }
}
