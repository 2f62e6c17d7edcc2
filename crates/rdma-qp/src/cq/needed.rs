//! The capacity that all queue pairs of a completion queue may need at the same time.
//!
//! A queue pair may need an entry for each request in its queues. Unsignaled requests count too, because they create
//! completions when they are flushed. Queue pairs that share both a receive queue and a completion queue share the
//! entries for the receives. They need `max_wr` entries together, because at most `max_wr` receives can be outstanding
//! in the shared receive queue.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The capacity that the queue pairs of one completion queue may need.
#[derive(Debug, Default)]
pub(crate) struct NeededCapacity(Mutex<Needed>);

#[derive(Debug, Default)]
pub(super) struct Needed {
    own: u64,
    shared: Vec<Shared>,
}

/// A shared receive queue whose receives complete in this completion queue.
#[derive(Debug)]
struct Shared {
    /// The address of the C object, which lives at least as long as the queue pairs that use it.
    address: usize,
    max_wr: u32,
    queue_pairs: usize,
}

impl NeededCapacity {
    pub(super) fn lock(&self) -> MutexGuard<'_, Needed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Needed {
    pub(super) fn total(&self) -> u64 {
        self.own + self.shared.iter().map(|shared| u64::from(shared.max_wr)).sum::<u64>()
    }

    pub(super) fn add(&mut self, own: u32, srq: Option<(usize, u32)>) {
        self.own += u64::from(own);
        let Some((address, max_wr)) = srq else { return };
        match self.shared.iter_mut().find(|shared| shared.address == address) {
            Some(shared) => shared.queue_pairs += 1,
            None => self.shared.push(Shared { address, max_wr, queue_pairs: 1 }),
        }
    }

    pub(super) fn remove(&mut self, own: u32, srq: Option<usize>) {
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
    fn removed_capacity_is_no_longer_counted() {
        let mut needed = Needed::default();
        needed.add(16, Some((1, 100)));
        needed.add(u32::MAX, Some((1, 100)));
        needed.add(5, Some((2, 7)));
        assert_eq!(needed.total(), 16 + u64::from(u32::MAX) + 5 + 100 + 7);
        needed.remove(16, Some(1));
        assert_eq!(
            needed.total(),
            u64::from(u32::MAX) + 5 + 100 + 7,
            "one is left that uses queue 1"
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
