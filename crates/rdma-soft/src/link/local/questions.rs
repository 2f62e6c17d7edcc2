//! Questions to a process whose acknowledgements are overdue. The process answers a question after it has executed
//! everything that was sent before it. The answer shows that the process runs and has nothing left to acknowledge. A
//! process that is stopped or not scheduled does not answer.

use std::collections::BTreeMap;
use std::sync::Weak;

use crate::fabric::run_queue::Task;

#[derive(Debug, Default)]
pub(super) struct Questions {
    /// The number of connection bursts that have entered the outbox so far.
    put: u64,
    /// The number of connection bursts that have been written so far.
    written: u64,
    /// The number of written bursts at which the next question is due.
    due: Option<u64>,
    /// The number of the last question sent; the first one is 1.
    asked: u32,
    /// The number of the last question that has been answered.
    answered: u32,
    /// Senders that wait for an answer, with the number of the question, by the sender's address.
    waiting: BTreeMap<usize, (u32, Weak<dyn Task>)>,
}

/// Returns true if the answer to question `answered` also answers `question`.
pub(super) fn covers(answered: u32, question: u32) -> bool {
    answered.wrapping_sub(question).cast_signed() >= 0
}

impl Questions {
    /// Records that a connection burst has entered the outbox.
    pub(super) fn note_put(&mut self) {
        self.put += 1;
    }

    /// Records that connection bursts were written.
    pub(super) fn note_written(&mut self, bursts: u64) {
        self.written += bursts;
    }

    /// Makes a question due as soon as everything in the outbox is written. The sender gets a turn when the question
    /// is answered. Returns the number of the question.
    pub(super) fn ask(&mut self, sender: Weak<dyn Task>) -> u32 {
        self.due = Some(self.put);
        let question = self.asked.wrapping_add(1);
        self.waiting.insert(sender.as_ptr().cast::<()>().addr(), (question, sender));
        question
    }

    /// If a question is due now, returns its number.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.due.take_if(|due| *due <= self.written)?;
        self.asked = self.asked.wrapping_add(1);
        Some(self.asked)
    }

    /// Makes the last question, which could not be sent, due again.
    pub(super) fn ask_again(&mut self) {
        self.asked = self.asked.wrapping_sub(1);
        self.due = Some(self.written);
    }

    /// Removes and returns the senders that this answer satisfies.
    pub(super) fn answer(&mut self, answered: u32) -> Vec<Weak<dyn Task>> {
        self.answered = answered;
        let mut covered_senders = Vec::new();
        self.waiting.retain(|_, (question, sender)| {
            let covered = covers(answered, *question);
            if covered {
                covered_senders.push(sender.clone());
            }
            !covered
        });
        covered_senders
    }

    /// Returns true if a question was asked and has not been answered.
    pub(super) fn are_open(&self) -> bool {
        !covers(self.answered, self.asked)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fabric::Fabric;
    use crate::fabric::run_queue::tests::Turns;

    static FABRIC: Fabric = Fabric::new();

    #[test]
    fn a_question_follows_all_earlier_bursts() {
        let senders = [(); 2].map(|()| Turns::new(&FABRIC));
        let weak = |n: usize| -> Weak<dyn Task> { Arc::<Turns>::downgrade(&senders[n]) };
        let mut questions = Questions::default();
        (0..3).for_each(|_| questions.note_put());
        assert_eq!(questions.ask(weak(0)), 1);
        assert_eq!(questions.next(), None);
        questions.note_written(2);
        assert_eq!((questions.next(), questions.are_open()), (None, false));
        // Another sender sends something in the meantime. The same question covers it.
        questions.note_put();
        assert_eq!(questions.ask(weak(1)), 1);
        questions.note_written(1);
        assert_eq!(questions.next(), None);
        questions.note_written(1);
        assert_eq!(
            (questions.next(), questions.next(), questions.are_open()),
            (Some(1), None, true)
        );
        // A second question has another number.
        assert_eq!(questions.ask(weak(1)), 2);
        assert_eq!(questions.answer(0).len(), 0);
        let covered_senders = questions.answer(1);
        assert!(covered_senders.len() == 1 && covered_senders[0].ptr_eq(&weak(0)));
        assert_eq!(questions.next(), Some(2));
        questions.ask_again();
        assert_eq!(questions.next(), Some(2));
        assert!(questions.are_open());
        assert_eq!(questions.answer(2).len(), 1);
        assert!(!questions.are_open());
    }
}
