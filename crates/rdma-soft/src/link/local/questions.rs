//! Whether a process that answers nothing has had the time to: it is asked, and answers when it has executed all that was
//! sent before. One that has stopped, or gets no processor, does not.

use std::collections::BTreeMap;
use std::sync::Weak;

use crate::fabric::turns::Driven;

#[derive(Debug, Default)]
pub(super) struct Questions {
    /// How many bursts of connections were to be sent, ever, and how many were written.
    put: u64,
    written: u64,
    /// A question is to be asked when so many are written.
    due: Option<u64>,
    /// The number of the last question. The first one is 1.
    asked: u32,
    /// That of the last one that was answered.
    answered: u32,
    /// Who waits for which answer, by its place in memory.
    waiting: BTreeMap<usize, (u32, Weak<dyn Driven>)>,
}

/// Whether an answer is also one to that question.
pub(super) fn covers(answered: u32, question: u32) -> bool {
    answered.wrapping_sub(question).cast_signed() >= 0
}

impl Questions {
    /// A burst of a connection is to be sent.
    pub(super) fn note_put(&mut self) {
        self.put += 1;
    }

    /// So many were written.
    pub(super) fn note_written(&mut self, bursts: u64) {
        self.written += bursts;
    }

    /// Has a question asked when all is written that is to be sent by now, and calls the sender when it is answered. Says
    /// by which number.
    pub(super) fn ask(&mut self, sender: Weak<dyn Driven>) -> u32 {
        self.due = Some(self.put);
        let question = self.asked.wrapping_add(1);
        self.waiting.insert(sender.as_ptr().cast::<()>().addr(), (question, sender));
        question
    }

    /// The question that is to be asked now, if there is one.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.due.take_if(|due| *due <= self.written)?;
        self.asked = self.asked.wrapping_add(1);
        Some(self.asked)
    }

    /// A question could not be asked, and is to be asked again.
    pub(super) fn ask_again(&mut self) {
        self.asked = self.asked.wrapping_sub(1);
        self.due = Some(self.written);
    }

    /// Takes those who wait for that answer.
    pub(super) fn answer(&mut self, answered: u32) -> Vec<Weak<dyn Driven>> {
        self.answered = answered;
        let mut called = Vec::new();
        self.waiting.retain(|_, (question, sender)| {
            let covered = covers(answered, *question);
            if covered {
                called.push(sender.clone());
            }
            !covered
        });
        called
    }

    /// Whether a question was asked that is not answered.
    pub(super) fn are_open(&self) -> bool {
        !covers(self.answered, self.asked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fabric::turns::Place;

    #[derive(Debug, Default)]
    struct Sender(Place);

    impl Driven for Sender {
        fn place(&self) -> &Place {
            &self.0
        }

        fn take_turn(self: Arc<Self>) -> bool {
            false
        }

        fn call(&self) {}
    }

    #[test]
    fn a_question_follows_what_was_to_be_sent_before() {
        let senders = [(); 2].map(|()| Arc::new(Sender::default()));
        let weak = |n: usize| -> Weak<dyn Driven> { Arc::<Sender>::downgrade(&senders[n]) };
        let mut questions = Questions::default();
        (0..3).for_each(|_| questions.note_put());
        assert_eq!(questions.ask(weak(0)), 1);
        assert_eq!(questions.next(), None);
        questions.note_written(2);
        assert_eq!((questions.next(), questions.are_open()), (None, false));
        // Another one has sent something meanwhile, which the same question is about.
        questions.note_put();
        assert_eq!(questions.ask(weak(1)), 1);
        questions.note_written(1);
        assert_eq!(questions.next(), None);
        questions.note_written(1);
        assert_eq!(
            (questions.next(), questions.next(), questions.are_open()),
            (Some(1), None, true)
        );
        // A second question is another's.
        assert_eq!(questions.ask(weak(1)), 2);
        assert_eq!(questions.answer(0).len(), 0);
        let called = questions.answer(1);
        assert!(called.len() == 1 && called[0].ptr_eq(&weak(0)));
        assert_eq!(questions.next(), Some(2));
        questions.ask_again();
        assert_eq!(questions.next(), Some(2));
        assert!(questions.are_open());
        assert_eq!(questions.answer(2).len(), 1);
        assert!(!questions.are_open());
    }
}
