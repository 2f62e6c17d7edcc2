//! Grants: the right of a requester to access memory of another process itself, without packets.
//!
//! The responder's process gives a grant for a region and a queue pair. It does so after it has executed a request of
//! that queue pair with the region's key. From then on, the requester executes its WRITEs, READs and atomics on a
//! mapping of the region's pages. It does so within a visit, in which it first checks that both versions of the grant
//! are unchanged. It sends all other requests as packets; only the responder refuses requests.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::wire::letter::ExecutedWords;
use crate::engine::wire::word::WordKey;
use crate::fabric::clock::Clock;
use crate::memory::copy::Segment;
use crate::sync::backoff::Backoff;

/// The requester's end of a grant.
pub(crate) trait Grant: Send + Sync + std::fmt::Debug {
    /// Returns the key of the region.
    fn key(&self) -> u32;

    /// Returns true unless the grant is revoked. Within a visit, the answer true holds until the end of the visit: the
    /// responder's process waits for that.
    fn is_valid(&self) -> bool;

    /// Returns `length` bytes at the address `iova` of requests, if all of them lie inside and the grant permits all of
    /// `access` (`IBV_ACCESS_REMOTE_*`). The segment is valid as long as the grant lives.
    fn locate(&self, iova: u64, length: u64, access: u32) -> Option<Segment>;
}

/// A version word: its index, and the value at which its grants are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) index: u32,
    pub(crate) value: u32,
}

/// A grant that a responder's process may give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    /// The key of the region.
    pub(crate) key: u32,
    /// The key of the word of the requester's connection.
    pub(crate) word: WordKey,
    /// The number of the protection domain of the responder's queue pair.
    pub(crate) domain: u64,
    /// `IBV_ACCESS_REMOTE_*` that the responder's queue pair permits.
    pub(crate) access: u32,
    /// The version of the queue pair.
    pub(crate) version: Version,
}

/// The maximum number of regions in the grants of a queue pair.
const MOST_KEYS: usize = 256;

/// The version of a queue pair, and what was granted under it.
#[derive(Debug)]
struct Lent {
    words: Weak<dyn ExecutedWords>,
    word: WordKey,
    version: Version,
    /// The keys of the wanted grants.
    keys: Vec<u32>,
    /// The number of requests that got no grant because there were too many keys.
    refused: usize,
}

/// Revokes the grants. The memory of the words may live longer than the queue pair's connection.
impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(words) = self.words.upgrade() {
            words.take_version(self.version.index);
        }
    }
}

/// The grants of a responder to the requester of its connection.
#[derive(Debug, Default)]
pub(crate) struct Given(Option<Lent>);

impl Given {
    /// Returns a description of the grant to give after a request with this key, unless one was wanted already.
    /// `is_registered` returns true for the keys that are still valid.
    pub(crate) fn want(
        &mut self,
        words: &Arc<dyn ExecutedWords>,
        word: WordKey,
        key: u32,
        domain: u64,
        access: u32,
        is_registered: impl Fn(u32) -> bool,
    ) -> Option<Want> {
        let is_same = |lent: &Lent| lent.word == word && lent.words.ptr_eq(&Arc::downgrade(words));
        if self.0.as_ref().is_some_and(|lent| !is_same(lent)) {
            // The requester has begun another connection, and no longer uses the earlier grants.
            self.0 = None;
        }
        let lent = match &mut self.0 {
            Some(lent) if lent.keys.contains(&key) => return None,
            Some(lent) => lent,
            none => {
                let version = words.lend_version()?;
                let (words, keys) = (Arc::downgrade(words), Vec::new());
                none.insert(Lent { words, word, version, keys, refused: 0 })
            }
        };
        if lent.keys.len() >= MOST_KEYS {
            // Looks up all keys only for some requests, because this takes long.
            if lent.refused.is_multiple_of(MOST_KEYS) {
                lent.keys.retain(|&key| is_registered(key));
            }
            if lent.keys.len() >= MOST_KEYS {
                lent.refused = lent.refused.wrapping_add(1);
                return None;
            }
        }
        lent.keys.push(key);
        Some(Want { key, word, domain, access, version: lent.version })
    }

    /// Revokes all grants. Returns the visits that may still use them. A later request may get new grants.
    pub(crate) fn revoke(&mut self) -> Option<Visited> {
        let lent = self.0.take()?;
        Some(Visited { words: Weak::clone(&lent.words), index: lent.word.index() })
    }
}

/// A connection of another process that may be using a grant.
#[derive(Debug)]
pub(crate) struct Visited {
    pub(crate) words: Weak<dyn ExecutedWords>,
    /// The index of the connection's word.
    pub(crate) index: usize,
}

/// The longest wait for visits. A visit of an honest process copies at most a part of a message, and takes longer only
/// if that process gets no processor.
const LONGEST_VISIT: Duration = Duration::from_millis(10);

/// Waits for visits that began before their grants were revoked. All of them together have one limit, because hostile
/// processes may be many, and have many connections. A connection that is still in its visit then is never waited for
/// again, and its process gets no further grants. The caller holds no lock of a queue pair.
pub(crate) fn wait_for_visits(clock: &Clock, visited: impl IntoIterator<Item = Visited>) {
    let current = |Visited { words, index }: Visited| {
        let words = words.upgrade()?;
        words.visit(index).map(|visit| (words, index, visit))
    };
    // All visits are found before the first wait, so that each has the whole time to end.
    let visits: Vec<_> = visited.into_iter().filter_map(current).collect();
    if visits.is_empty() {
        return;
    }
    let deadline = clock.now() + LONGEST_VISIT;
    for (words, index, visit) in visits {
        let mut backoff = Backoff::default();
        while words.visit(index) == Some(visit) {
            if clock.now() > deadline {
                words.end_grants();
                break;
            }
            backoff.wait();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use rdma_types::Psn;

    use super::*;
    use crate::fabric::clock::Time;

    /// Another process. Each look at its visits takes a millisecond.
    #[derive(Debug)]
    struct Process {
        clock: Arc<Clock>,
        /// Returns the visit at this time, in milliseconds.
        visit: fn(u64) -> Option<u32>,
        ended: AtomicBool,
    }

    impl Process {
        fn new(clock: &Arc<Clock>, visit: fn(u64) -> Option<u32>) -> Arc<Self> {
            Arc::new(Self { clock: Arc::clone(clock), visit, ended: AtomicBool::new(false) })
        }

        fn visited(self: &Arc<Self>, index: usize) -> Visited {
            let words: Arc<dyn ExecutedWords> = Arc::<Self>::clone(self);
            Visited { words: Arc::downgrade(&words), index }
        }

        fn has_ended(&self) -> bool {
            self.ended.load(Ordering::Relaxed)
        }
    }

    impl ExecutedWords for Process {
        fn store(&self, _: WordKey, _: Psn) {}

        fn is_patient(&self, _: WordKey) -> bool {
            false
        }

        fn visit(&self, _: usize) -> Option<u32> {
            self.clock.advance_to(self.clock.now() + Duration::from_millis(1));
            (self.visit)(milliseconds(&self.clock)).filter(|_| !self.has_ended())
        }

        fn end_grants(&self) {
            self.ended.store(true, Ordering::Relaxed);
        }

        fn announce(&self) {}
    }

    fn clock() -> Arc<Clock> {
        Arc::new(Clock::Virtual(AtomicU64::new(Time::BEGINNING.nanoseconds())))
    }

    fn milliseconds(clock: &Clock) -> u64 {
        clock.now().nanoseconds() / 1_000_000
    }

    /// The order is that in which the processes got grants.
    #[test]
    fn a_visit_without_end_ends_the_grants_of_its_process_alone() {
        for hostile_first in [true, false] {
            let clock = clock();
            let hostile = Process::new(&clock, |_| Some(1));
            let honest = Process::new(&clock, |time| (time < 9).then_some(1));
            let mut visited = [hostile.visited(0), hostile.visited(1), honest.visited(0)];
            if !hostile_first {
                visited.reverse();
            }
            wait_for_visits(&clock, visited);
            assert_eq!([hostile.has_ended(), honest.has_ended()], [true, false]);
        }
    }

    #[test]
    fn a_wait_ends_with_the_visit() {
        let clock = clock();
        let honest = Process::new(&clock, |time| (time < 9).then_some(1));
        wait_for_visits(&clock, [honest.visited(0)]);
        assert_eq!((milliseconds(&clock), honest.has_ended()), (9, false));
    }

    /// A process may have many connections, and start other processes.
    #[test]
    fn the_visits_of_all_processes_have_one_limit() {
        let clock = clock();
        let processes: Vec<_> = (0..100).map(|_| Process::new(&clock, |_| Some(1))).collect();
        wait_for_visits(&clock, processes.iter().map(|process| process.visited(0)));
        assert!(processes.iter().all(|process| process.has_ended()));
        // Each process is looked at twice.
        assert_eq!(milliseconds(&clock), 2 * 100 + 10);
    }

    /// The process is in its next visit when the wait for the hostile one ends.
    #[test]
    fn a_visit_that_ends_during_the_wait_for_another_one_is_in_time() {
        let clock = clock();
        let hostile = Process::new(&clock, |_| Some(1));
        let honest = Process::new(&clock, |time| Some(if time < 9 { 1 } else { 3 }));
        wait_for_visits(&clock, [hostile.visited(0), honest.visited(0)]);
        assert_eq!([hostile.has_ended(), honest.has_ended()], [true, false]);
    }
}
