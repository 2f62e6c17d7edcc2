//! How much of a completion queue its queue pairs may need at a time.
//!
//! A queue pair may need room for all that its queues hold: unsignaled requests too, since they
//! complete when they are flushed. The receives of a shared queue are needed once for all queue
//! pairs that take from it and complete in one queue: no more of them can be outstanding, whoever
//! takes them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{CompletionQueue, Error, QueuePairCapabilities, SharedReceiveQueue};

/// What the queue pairs of one completion queue may need.
#[derive(Debug, Default)]
pub(crate) struct CompletionRoom(Mutex<Needed>);

#[derive(Debug, Default)]
struct Needed {
    own: u64,
    shared: Vec<Shared>,
}

/// A shared receive queue whose receives complete there.
#[derive(Debug)]
struct Shared {
    /// Where the C object is, which lives as long as the queue pairs.
    address: usize,
    max_wr: u32,
    queue_pairs: usize,
}

/// What one queue pair may need in one completion queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    cq: CompletionQueue,
    own: u32,
    /// The address of its shared receive queue.
    srq: Option<usize>,
}

/// What a queue pair may need in its completion queues: one, or two.
pub(crate) type Claims = [Option<Claim>; 2];

/// Counts what a queue pair may need in its completion queues; in one if both are the same.
///
/// # Errors
/// [`Error::CompletionQueueTooSmall`] if it is strict, and there is not so much room; then nothing
/// is counted.
pub(crate) fn claim(
    (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
    sizes: &QueuePairCapabilities,
    srq: Option<&SharedReceiveQueue>,
    strict: bool,
) -> Result<Claims, Error> {
    let &QueuePairCapabilities { max_send_wr: sends, max_recv_wr, .. } = sizes;
    let receives = if srq.is_some() { 0 } else { max_recv_wr };
    if send_cq.is_same(recv_cq) {
        let both = sends.saturating_add(receives);
        return Ok([Some(Claim::new("send_cq", send_cq, both, srq, strict)?), None]);
    }
    Ok([
        Some(Claim::new("send_cq", send_cq, sends, None, strict)?),
        Some(Claim::new("recv_cq", recv_cq, receives, srq, strict)?),
    ])
}

impl Claim {
    fn new(
        knob: &'static str,
        cq: &CompletionQueue,
        own: u32,
        srq: Option<&SharedReceiveQueue>,
        strict: bool,
    ) -> Result<Self, Error> {
        let capacity = cq.min_capacity();
        let fits = |needed: u64| needed <= u64::from(capacity);
        let address = srq.map(|srq| srq.as_raw().addr());
        let (before, after) = {
            let mut needed = cq.room().lock();
            let before = needed.total();
            needed.add(own, address.zip(srq.map(SharedReceiveQueue::max_wr)));
            let after = needed.total();
            if strict && !fits(after) {
                needed.remove(own, address);
            }
            (before, after)
        };
        let needed = u32::try_from(after).unwrap_or(u32::MAX);
        if strict && !fits(after) {
            return Err(Error::CompletionQueueTooSmall { knob, capacity, needed });
        }
        if fits(before) && !fits(after) {
            tracing::warn!(
                knob,
                capacity,
                needed,
                "the queue pairs of a completion queue can have more completions than it holds: it \
                 fails if it is not polled in time"
            );
        }
        Ok(Self { cq: cq.clone(), own, srq: address })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.cq.room().lock().remove(self.own, self.srq);
    }
}

impl CompletionRoom {
    fn lock(&self) -> MutexGuard<'_, Needed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Needed {
    fn total(&self) -> u64 {
        self.own + self.shared.iter().map(|shared| u64::from(shared.max_wr)).sum::<u64>()
    }

    fn add(&mut self, own: u32, srq: Option<(usize, u32)>) {
        self.own += u64::from(own);
        let Some((address, max_wr)) = srq else { return };
        match self.shared.iter_mut().find(|shared| shared.address == address) {
            Some(shared) => shared.queue_pairs += 1,
            None => self.shared.push(Shared { address, max_wr, queue_pairs: 1 }),
        }
    }

    fn remove(&mut self, own: u32, srq: Option<usize>) {
        self.own -= u64::from(own);
        let Some(address) = srq else { return };
        for shared in &mut self.shared {
            shared.queue_pairs -= usize::from(shared.address == address);
        }
        self.shared.retain(|shared| shared.queue_pairs > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_in_any_order_is_gone_when_it_was_removed() {
        let mut needed = Needed::default();
        needed.add(16, Some((1, 100)));
        needed.add(u32::MAX, Some((1, 100)));
        needed.add(5, Some((2, 7)));
        assert_eq!(needed.total(), 16 + u64::from(u32::MAX) + 5 + 100 + 7);
        needed.remove(16, Some(1));
        assert_eq!(
            needed.total(),
            u64::from(u32::MAX) + 5 + 100 + 7,
            "one is left that takes from 1"
        );
        needed.remove(u32::MAX, Some(1));
        assert_eq!(needed.total(), 5 + 7);
        needed.add(1, None);
        needed.remove(5, Some(2));
        assert_eq!((needed.total(), needed.shared.len()), (1, 0));
        needed.remove(1, None);
        assert_eq!(needed.total(), 0);
    }
}
