//! Resizing a completion queue while other threads push to it and poll it.

use crate::engine::Refusal;
use crate::engine::completion::queue::CompletionQueue;
use crate::sync::Ordering;

impl CompletionQueue {
    /// Makes space for `capacity` completions. Fails and changes nothing if the queue holds more than that, or if
    /// memory is lacking. Calls `done` after the resize, before another thread resizes the queue again.
    ///
    /// The completions in the queue get new numbers, starting with the number of the next completion. In the new ring,
    /// no entry looks empty to a lookup of an earlier number. So a lock-free poll with the old head and the new ring
    /// takes the lock, unless the queue was empty. A poll with the new head also has the new ring.
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
