//! The words by which two processes hand a ring of bytes over to each other: how far the one has written it and the other
//! has read it, and who waits to be told of that by another way. Either process may have written anything there.

use crate::sync::{AtomicU32, Ordering, fence};

/// How many bytes the ring has.
pub(crate) const CAPACITY: u32 = if cfg!(loom) { 4 } else { 256 << 10 };

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Word(AtomicU32);

/// What is at the beginning of the memory that two processes share. Zeros are a ring that is empty, and of which each
/// message is told.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Words {
    /// How many bytes were written, ever.
    tail: Word,
    /// How many were read.
    head: Word,
    /// The receiver looks at the ring without being told of messages.
    looks: Word,
    /// The sender is to be told of space.
    waits: Word,
    /// The number of the sender's last question: whether all is executed that was written before.
    asked: Word,
    /// The number of the last question that the receiver has answered.
    answered: Word,
}

/// The other process has written what none of this program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl Words {
    /// Sender: how much space there is behind `tail`.
    pub(crate) fn space(&self, tail: u32) -> Result<u32, Broken> {
        let used = tail.wrapping_sub(self.head.0.load(Ordering::Acquire));
        CAPACITY.checked_sub(used).ok_or(Broken)
    }

    /// Sender: what is before `tail` is there. Says whether the receiver is to be told of it.
    pub(crate) fn publish(&self, tail: u32) -> bool {
        self.tail.0.store(tail, Ordering::Release);
        // Either this sees that the receiver does not look, or that one, before it sleeps, sees what is there.
        fence(Ordering::SeqCst);
        self.looks.0.load(Ordering::Acquire) == 0 && self.looks.0.swap(TOLD, Ordering::AcqRel) == 0
    }

    /// Sender: the receiver could not be told, and is to be told of the next message.
    pub(crate) fn has_not_told(&self) {
        self.looks.0.store(0, Ordering::Release);
    }

    /// Sender: it is to be told of space. Says how much there is nevertheless.
    pub(crate) fn wait(&self, tail: u32) -> Result<u32, Broken> {
        self.waits.0.store(1, Ordering::Relaxed);
        // Either the receiver sees that, or this sees what it has read before.
        fence(Ordering::SeqCst);
        self.space(tail)
    }

    /// Sender: asks whether everything is executed that was published before. The caller notifies the receiver.
    pub(crate) fn ask(&self, question: u32) {
        self.asked.0.store(question, Ordering::Release);
    }

    /// Sender: the last question that was answered.
    pub(crate) fn answered(&self) -> u32 {
        self.answered.0.load(Ordering::Acquire)
    }

    /// Receiver: the last question. What was published before it is [there](Self::there).
    pub(crate) fn asked(&self) -> u32 {
        self.asked.0.load(Ordering::Acquire)
    }

    /// Receiver: everything is executed that was published before that question. The caller notifies the sender.
    pub(crate) fn answer(&self, question: u32) {
        self.answered.0.store(question, Ordering::Release);
    }

    /// Sender: how much was read.
    pub(crate) fn head(&self) -> u32 {
        self.head.0.load(Ordering::Relaxed)
    }

    /// Receiver: how many bytes there are behind `head`.
    pub(crate) fn there(&self, head: u32) -> Result<u32, Broken> {
        let there = self.tail.0.load(Ordering::Acquire).wrapping_sub(head);
        if there <= CAPACITY { Ok(there) } else { Err(Broken) }
    }

    /// Receiver: what is before `head` was read, and `left` bytes were there behind it. Says whether the sender is to be
    /// told of it: when half of the ring is free, so that it is not told of each message.
    pub(crate) fn free(&self, head: u32, left: u32) -> bool {
        self.head.0.store(head, Ordering::Release);
        if left > CAPACITY / 2 {
            return false;
        }
        fence(Ordering::SeqCst);
        self.waits.0.load(Ordering::Relaxed) != 0 && self.waits.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Receiver: the sender could not be told, and is to be told when more is free.
    pub(crate) fn has_not_told_of_space(&self) {
        self.waits.0.store(1, Ordering::Relaxed);
    }

    /// Receiver: it looks at the ring from now on, whatever it is told.
    pub(crate) fn look(&self) {
        self.looks.0.store(1, Ordering::Relaxed);
    }

    /// Receiver: it is to be told of messages from now on. Those that are there it finds [there](Self::there) when it looks
    /// after this.
    pub(crate) fn sleep(&self) {
        self.looks.0.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// In place of `looks`: the receiver was told of a message, and not asked to be told of others since.
const TOLD: u32 = 2;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// Whoever is told once sleeps until then.
    #[derive(Debug, Default)]
    struct Bell(AtomicBool);

    impl Bell {
        fn ring(&self) {
            self.0.store(true, Ordering::Release);
        }

        fn has_rung(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }
    }

    /// A receiver that finds nothing, and goes to sleep, is told of what comes.
    #[test]
    fn loom_a_message_is_seen_or_told_of() {
        loom::model(|| {
            let shared = Arc::new((Words::default(), Bell::default()));
            shared.0.look();
            let sender = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    if shared.0.publish(1) {
                        shared.1.ring();
                    }
                }
            });
            shared.0.sleep();
            let seen = shared.0.there(0) == Ok(1);
            sender.join().unwrap();
            assert!(seen || shared.1.has_rung());
        });
    }

    /// Whoever sees a question sees what was published before it.
    #[test]
    fn loom_a_question_is_about_what_came_before() {
        loom::model(|| {
            let shared = Arc::new(Words::default());
            let sender = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.publish(1);
                    shared.ask(1);
                    shared.answered() == 1
                }
            });
            let asked = shared.asked();
            let there = shared.there(0) == Ok(1);
            assert!(there || asked == 0);
            shared.answer(asked);
            assert!(!sender.join().unwrap() || asked == 1);
        });
    }

    /// A sender that finds no space is told of what the receiver reads.
    #[test]
    fn loom_space_is_seen_or_told_of() {
        loom::model(|| {
            let shared = Arc::new((Words::default(), Bell::default()));
            shared.0.publish(CAPACITY);
            let receiver = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    for read in 1..=CAPACITY {
                        if shared.0.free(read, CAPACITY - read) {
                            shared.1.ring();
                        }
                    }
                }
            });
            // What it has to write needs half of the ring at most.
            let space = shared.0.wait(CAPACITY).unwrap();
            receiver.join().unwrap();
            assert!(space >= CAPACITY / 2 || shared.1.has_rung());
        });
    }
}
