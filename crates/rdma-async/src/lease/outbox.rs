//! Frames that wait to be written to a control connection.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::frame::LeaseFrame;

/// The maximum number of the peer's requests whose answers have not been written yet.
const MOST_ASKS: usize = 64;
/// The maximum number of bytes of [replies](Outbox::reply) that have not been written yet. Answers to requests do not
/// count.
const MOST_ANSWERS: usize = 1 << 20;
/// The maximum number of queued bytes of all kinds together, not counting the bytes that are being written.
pub(crate) const MOST: usize = 4 << 20;

/// Encoded frames, in order, that wait for the task that owns the stream to write them.
#[derive(Debug)]
pub(crate) struct Outbox {
    inside: Mutex<Inside>,
    /// Notified when there are bytes to write.
    pub(crate) to_send: Arc<Notify>,
    /// Writes the head of a frame about a lease.
    head: fn(u16, u32, u32, &mut Vec<u8>),
}

#[derive(Debug, Default)]
struct Inside {
    bytes: Vec<u8>,
    /// The number of these bytes that [`reply`](Outbox::reply) has queued.
    answers: usize,
    /// The number of requests from the other end that are not fully answered.
    asks: usize,
    /// The number of requests whose answers are among the bytes.
    answered: usize,
    has_ended: bool,
}

impl Outbox {
    pub(crate) fn new(head: fn(u16, u32, u32, &mut Vec<u8>)) -> Self {
        Self { inside: Mutex::default(), to_send: Arc::default(), head }
    }

    fn with<R>(&self, with: impl FnOnce(&mut Inside) -> R) -> R {
        with(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues the bytes that `write` appends, unless the stream has ended.
    pub(crate) fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.put(write, |_, _| {});
    }

    /// Queues a frame about a lease.
    pub(crate) fn send(&self, number: u32, epoch: u32, frame: &LeaseFrame) {
        self.write(|bytes| self.frame(number, epoch, frame, bytes));
    }

    fn frame(&self, number: u32, epoch: u32, frame: &LeaseFrame, bytes: &mut Vec<u8>) {
        (self.head)(frame.kind(), number, epoch, bytes);
        frame.write(bytes);
    }

    /// Like [`send`](Self::send), but for a reply to a frame from the other end that is not a request.
    ///
    /// # Errors
    /// If the other end keeps sending such frames without reading the replies.
    pub(crate) fn reply(
        &self,
        number: u32,
        epoch: u32,
        frame: &LeaseFrame,
    ) -> Result<(), &'static str> {
        let mut waits = 0;
        let note = |inside: &mut Inside, bytes| {
            inside.answers += bytes;
            waits = inside.answers;
        };
        self.put(|bytes| self.frame(number, epoch, frame, bytes), note);
        if waits > MOST_ANSWERS { Err("it does not read the answers") } else { Ok(()) }
    }

    /// Answers a request that was [noted](Self::note_ask).
    pub(crate) fn answer(&self, number: u32, epoch: u32, frame: &LeaseFrame) {
        let write = |bytes: &mut Vec<u8>| self.frame(number, epoch, frame, bytes);
        self.put(write, |inside, _| inside.answered += 1);
    }

    /// Counts a request from the other end.
    ///
    /// # Errors
    /// If the other end keeps sending requests without reading the answers.
    pub(crate) fn note_ask(&self) -> Result<(), &'static str> {
        self.with(|inside| {
            inside.asks += 1;
            if inside.asks > MOST_ASKS {
                Err("it sends requests without reading the answers")
            } else {
                Ok(())
            }
        })
    }

    fn put(&self, write: impl FnOnce(&mut Vec<u8>), note: impl FnOnce(&mut Inside, usize)) {
        self.with(|inside| {
            if !inside.has_ended {
                let before = inside.bytes.len();
                write(&mut inside.bytes);
                let bytes = inside.bytes.len() - before;
                note(inside, bytes);
            }
        });
        self.to_send.notify_one();
    }

    /// Returns true if too many bytes are queued. If earlier bytes are also unwritten, the other end is not reading.
    pub(crate) fn is_full(&self) -> bool {
        self.with(|inside| inside.bytes.len() > MOST)
    }

    /// Takes the bytes to write now.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.with(|inside| {
            debug_assert!(inside.asks >= inside.answered, "each answer has its request");
            inside.asks = inside.asks.saturating_sub(inside.answered);
            (inside.answers, inside.answered) = (0, 0);
            std::mem::take(&mut inside.bytes)
        })
    }

    /// Ends the queue. Later frames are discarded.
    pub(crate) fn end(&self) {
        self.with(|inside| *inside = Inside { has_ended: true, ..Inside::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_answers_and_requests_are_limited() {
        let out = Outbox::new(|_, _, _, _| {});
        out.write(|bytes| bytes.resize(MOST, 0));
        assert!(!out.is_full());
        out.write(|bytes| bytes.push(0));
        assert!(out.is_full() && out.take().len() == MOST + 1 && !out.is_full());
        out.end();
        out.write(|bytes| bytes.extend([0; 16]));
        assert!(out.take().is_empty(), "nothing is kept after the end");
    }
}
