//! Giving a completion queue another size while it is pushed to and polled.

use crate::engine::Refusal;
use crate::engine::completion::queue::CompletionQueue;
use crate::sync::Ordering;

impl CompletionQueue {
    /// Makes space for `capacity` completions; refused, and nothing has changed, if more are there
    /// than that. Calls `done` when it has happened, before another thread resizes the queue again.
    ///
    /// The completions that are there get new numbers, from that of the next completion on, and no entry of the
    /// new ring looks empty to who looks for a number before that. So a poll without the lock that has the head
    /// from before and the ring from after takes the lock, unless the queue was empty; and who has the head
    /// from after has the ring from after.
    pub(crate) fn resize(&self, capacity: u32, done: impl FnOnce()) -> Result<(), Refusal> {
        let ring = self.rings.of(capacity)?;
        let _pollers = self.pollers.seats.lock();
        let mut producers = self.producers.lock();
        let head = self.pollers.head.load(Ordering::Relaxed);
        let count = producers.tail - head;
        if count > u64::from(capacity) {
            return Err(Refusal::Invalid);
        }
        producers.capacity = capacity.into();
        producers.head = head;
        if !self.rings.is_current(&ring) {
            let first = producers.tail;
            ring.clear(first);
            let before = self.rings.current();
            for n in 0..count {
                let (from, to) = (before.entry(head + n), ring.entry(first + n));
                let (seat, completion) = from.read();
                to.copy_timestamp(from);
                to.put(seat, &completion);
                to.publish(first + n);
            }
            self.rings.exchange(&ring);
            self.pollers.head.store(first, Ordering::Release);
            (producers.head, producers.tail) = (first, first + count);
        }
        done();
        Ok(())
    }
}
