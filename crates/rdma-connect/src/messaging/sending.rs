//! The operations that a flush waits for: those that began before it.

use std::collections::VecDeque;

/// The number of operations that are sending, in consecutive periods. A flush begins a new period, and waits until all
/// earlier ones are over.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The number of the first period.
    first: u64,
    /// The number of operations in each period. The first one has some, unless it is also the last one.
    counts: VecDeque<usize>,
    /// Whether a period has ended since [`take_ended`](Self::take_ended) was last called.
    has_ended: bool,
}

impl Sending {
    fn last(&self) -> u64 {
        self.first + self.counts.len().saturating_sub(1) as u64
    }

    /// Counts an operation that starts to send. Returns its period.
    pub(super) fn begin(&mut self) -> u64 {
        match self.counts.back_mut() {
            Some(count) => *count += 1,
            None => self.counts.push_back(1),
        }
        self.last()
    }

    /// Counts the end of an operation of this period.
    pub(super) fn end(&mut self, period: u64) {
        let at = period.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let count = at.and_then(|at| self.counts.get_mut(at)).filter(|count| **count > 0);
        debug_assert!(count.is_some(), "an operation that was not counted has ended");
        count.into_iter().for_each(|count| *count -= 1);
        while self.counts.front() == Some(&0) && self.counts.len() > 1 {
            self.counts.pop_front();
            self.first += 1;
            self.has_ended = true;
        }
        self.has_ended |= !self.are_any();
    }

    /// Returns true if an operation is sending.
    pub(super) fn are_any(&self) -> bool {
        self.counts.front().is_some_and(|&count| count > 0)
    }

    /// Returns the period in which later operations begin, and all operations so far do not.
    pub(super) fn flush(&mut self) -> u64 {
        if self.counts.back().is_some_and(|&count| count > 0) {
            self.counts.push_back(0);
        }
        self.last()
    }

    /// Returns true if all operations before this period are over.
    pub(super) const fn is_over_before(&self, period: u64) -> bool {
        self.first >= period
    }

    /// Returns true if a period has ended since the last call.
    pub(super) const fn take_ended(&mut self) -> bool {
        std::mem::replace(&mut self.has_ended, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_earlier_operations_alone() {
        let mut sending = Sending::default();
        let idle = sending.flush();
        assert!(sending.is_over_before(idle) && !sending.are_any());
        let (one, two) = (sending.begin(), sending.begin());
        let first = sending.flush();
        assert_eq!(sending.flush(), first, "nothing has begun between");
        let three = sending.begin();
        let second = sending.flush();
        sending.end(three);
        sending.end(two);
        assert!(!sending.is_over_before(first) && !sending.take_ended());
        let four = sending.begin();
        sending.end(one);
        assert!(sending.is_over_before(first) && sending.is_over_before(second));
        assert!(sending.take_ended() && !sending.take_ended() && sending.are_any());
        sending.end(four);
        assert!(sending.take_ended() && !sending.are_any());
        assert_eq!(sending.counts, [0], "periods that are over take no memory");
    }
}
