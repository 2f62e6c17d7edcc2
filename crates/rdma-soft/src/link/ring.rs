//! The words with which two processes share a ring of bytes. They record how far one process has written, how far the
//! other has read, and which of them waits for a notification. Either process may write anything to this memory.

use crate::sync::{AtomicU32, Ordering, fence};

/// The size of the ring in bytes.
pub(crate) const CAPACITY: u32 = if cfg!(loom) { 4 } else { 512 << 10 };

/// A word that shares its cache lines with nothing else.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Word(AtomicU32);

/// The words at the beginning of the shared memory. With all bytes zero, the ring is empty, and the receiver is
/// notified of each message.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Words {
    /// The number of bytes written so far, modulo 2^32.
    tail: Word,
    /// The number of bytes read so far, modulo 2^32.
    head: Word,
    /// 1 if the receiver looks at the ring without being notified, 0 if it needs notifications, or [`NOTIFIED`].
    notifications: Word,
    /// Whether the sender must be notified of space.
    waits: Word,
    /// The number of the sender's last question, which asks whether everything written before it is executed.
    asked: Word,
    /// The number of the last question that the receiver answered.
    answered: Word,
}

/// The other process wrote values that this program never writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl Words {
    /// Sender: returns the number of free bytes after `tail`.
    pub(crate) fn space(&self, tail: u32) -> Result<u32, Broken> {
        let used = tail.wrapping_sub(self.head.0.load(Ordering::Acquire));
        CAPACITY.checked_sub(used).ok_or(Broken)
    }

    /// Sender: publishes everything before `tail`. Returns true if the receiver must be notified of it.
    pub(crate) fn publish(&self, tail: u32) -> bool {
        self.tail.0.store(tail, Ordering::Release);
        // Either this thread sees that the receiver is not looking, or the receiver sees the new bytes before it
        // sleeps.
        fence(Ordering::SeqCst);
        self.notifications.0.load(Ordering::Acquire) == 0
            && self.notifications.0.swap(NOTIFIED, Ordering::AcqRel) == 0
    }

    /// Sender: records that the notification failed, so that it is attempted again with the next message.
    pub(crate) fn notification_failed(&self) {
        self.notifications.0.store(0, Ordering::Release);
    }

    /// Sender: requests a notification of space. Returns how much space is already free.
    pub(crate) fn wait(&self, tail: u32) -> Result<u32, Broken> {
        self.waits.0.store(1, Ordering::Relaxed);
        // Either the receiver sees the request, or this thread sees what the receiver has already read.
        fence(Ordering::SeqCst);
        self.space(tail)
    }

    /// Sender: asks whether everything published before is executed. The caller notifies the receiver.
    pub(crate) fn ask(&self, question: u32) {
        self.asked.0.store(question, Ordering::Release);
    }

    /// Sender: returns the number of the last answered question.
    pub(crate) fn answered(&self) -> u32 {
        self.answered.0.load(Ordering::Acquire)
    }

    /// Receiver: returns the number of the last question. Everything published before the question is
    /// [visible](Self::unread).
    pub(crate) fn asked(&self) -> u32 {
        self.asked.0.load(Ordering::Acquire)
    }

    /// Receiver: answers that everything published before the question is executed. The caller notifies the sender.
    pub(crate) fn answer(&self, question: u32) {
        self.answered.0.store(question, Ordering::Release);
    }

    /// Sender: returns the number of bytes that the receiver has read so far.
    pub(crate) fn head(&self) -> u32 {
        self.head.0.load(Ordering::Relaxed)
    }

    /// Receiver: returns the number of unread bytes after `head`.
    pub(crate) fn unread(&self, head: u32) -> Result<u32, Broken> {
        let unread = self.tail.0.load(Ordering::Acquire).wrapping_sub(head);
        if unread <= CAPACITY { Ok(unread) } else { Err(Broken) }
    }

    /// Receiver: releases everything before `head`; `left` is the number of unread bytes after it. Returns true if the
    /// sender must be notified. This happens only when half of the ring is free, to avoid a notification per message.
    pub(crate) fn free(&self, head: u32, left: u32) -> bool {
        self.head.0.store(head, Ordering::Release);
        if left > CAPACITY / 2 {
            return false;
        }
        fence(Ordering::SeqCst);
        self.waits.0.load(Ordering::Relaxed) != 0 && self.waits.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Receiver: records that the notification failed, so that the sender is notified when more space is free.
    pub(crate) fn space_notification_failed(&self) {
        self.waits.0.store(1, Ordering::Relaxed);
    }

    /// Receiver: announces that it looks at the ring from now on without being notified.
    pub(crate) fn suppress_notifications(&self) {
        self.notifications.0.store(1, Ordering::Relaxed);
    }

    /// Receiver: requests notifications of messages from now on. A look after this call finds all messages that were
    /// [visible](Self::unread) before the call.
    pub(crate) fn request_notifications(&self) {
        self.notifications.0.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// The value of `notifications` after the receiver is notified and until it requests the next notification.
const NOTIFIED: u32 = 2;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// A notification, which wakes a receiver or sender that sleeps.
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

    /// A receiver that finds nothing and goes to sleep is notified of the next message.
    #[test]
    fn loom_a_message_is_seen_or_notified() {
        loom::model(|| {
            let shared = Arc::new((Words::default(), Bell::default()));
            shared.0.suppress_notifications();
            let sender = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    if shared.0.publish(1) {
                        shared.1.ring();
                    }
                }
            });
            shared.0.request_notifications();
            let seen = shared.0.unread(0) == Ok(1);
            sender.join().unwrap();
            assert!(seen || shared.1.has_rung());
        });
    }

    /// A receiver that sees a question also sees everything published before it.
    #[test]
    fn loom_a_question_covers_earlier_messages() {
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
            let unread = shared.unread(0) == Ok(1);
            assert!(unread || asked == 0);
            shared.answer(asked);
            assert!(!sender.join().unwrap() || asked == 1);
        });
    }

    /// A sender that finds no space is notified when the receiver reads.
    #[test]
    fn loom_space_is_seen_or_notified() {
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
            // The sender needs at most half of the ring.
            let space = shared.0.wait(CAPACITY).unwrap();
            receiver.join().unwrap();
            assert!(space >= CAPACITY / 2 || shared.1.has_rung());
        });
    }
}
