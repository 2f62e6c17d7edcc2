//! The words through which a process revokes its grants to another one. Also contains the words in which that other
//! process shows that it is using a grant.
//!
//! The process that grants (the owner) writes the versions; the other one (the user) can only read them. Each grant has
//! two versions: one of its region, and one of its queue pair. The user writes a word for each connection, which is odd
//! during a visit: while the connection accesses memory under a grant.
//!
//! This is Dekker's algorithm, as in `memory/grace_period`: each side writes, then reads what the other wrote. A fence
//! on each side keeps the write before the read. So either the user sees that the version has changed, or the owner
//! sees the visit and can wait for its end. Either process may write anything to its own words. A user that writes
//! nothing, or never ends a visit, only ends the owner's wait early or makes the owner give up.

use crate::engine::wire::word::WORDS;
use crate::sync::{AtomicU32, Line, Ordering, fence};

/// The number of versions that a process shares with another one: those that fit in a page of 4 KiB.
pub(crate) const VERSIONS: usize = if cfg!(loom) { 2 } else { 1023 };

/// The versions. All bytes zero are valid.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Versions {
    /// Changes after each version that changes, so that the user need not look at all versions.
    changes: AtomicU32,
    words: [AtomicU32; VERSIONS],
}

impl Versions {
    /// Returns a version, or `None` if the index is out of range.
    pub(crate) fn get(&self, index: u32) -> Option<u32> {
        self.words.get(index as usize).map(acquire)
    }

    /// Returns a number that differs from an earlier one if versions have changed between the calls.
    pub(crate) fn changes(&self) -> u32 {
        acquire(&self.changes)
    }

    /// Owner: returns the value of a version for a new grant, unless grants `have_ended`. If they end meanwhile, this call
    /// sees it, or [`end`](Self::end) changes the value.
    pub(crate) fn lend(&self, index: u32, have_ended: impl Fn() -> bool) -> Option<u32> {
        let value = self.get(index)?;
        (!have_ended()).then_some(value)
    }

    /// Owner: makes all grants invalid. The caller has recorded before that it gives no others.
    pub(crate) fn end(&self) {
        (0..).take_while(|&index| self.get(index).is_some()).for_each(|index| self.bump(index));
        ordered();
    }

    /// Owner: makes the grants with this version invalid. The caller then calls [`ordered`].
    pub(crate) fn bump(&self, index: u32) {
        if let Some(version) = self.words.get(index as usize) {
            version.fetch_add(1, Ordering::Release);
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// Returns the value of a word that may be in memory mapped for reading alone, with acquire ordering. Rust guarantees
/// only relaxed loads of such memory.
#[inline]
fn acquire(word: &AtomicU32) -> u32 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// Owner: orders the changes of versions before the reads of visits that follow.
pub(crate) fn ordered() {
    fence(Ordering::SeqCst);
}

/// The words of connections, by the index of their [`WordKey`](crate::engine::wire::word::WordKey). All bytes zero mean
/// that no connection is in a visit.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Visits(Line<[AtomicU32; WORDS]>);

impl Visits {
    /// User: begins a visit. Checks of versions after this call see everything that was revoked before the owner looked
    /// for this visit. The caller is the only thread that writes the word.
    pub(crate) fn begin(&self, index: usize) {
        if let Some(word) = self.0.get(index) {
            let next = word.load(Ordering::Relaxed).wrapping_add(1) | 1;
            // Release, because an owner that waits for the previous visit may see this store instead of its end.
            word.store(next, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// User: ends the visit. Everything that the visit wrote is visible to an owner that sees the end.
    pub(crate) fn end(&self, index: usize) {
        if let Some(word) = self.0.get(index) {
            let next = (word.load(Ordering::Relaxed) | 1).wrapping_add(1);
            word.store(next, Ordering::Release);
        }
    }

    /// Owner: returns the number of the current visit, or `None` if the connection is in none.
    pub(crate) fn current(&self, index: usize) -> Option<u32> {
        let visit = self.0.get(index)?.load(Ordering::Acquire);
        (visit % 2 == 1).then_some(visit)
    }
}

#[cfg(test)]
impl Default for Versions {
    fn default() -> Self {
        let words = std::array::from_fn(|_| AtomicU32::new(0));
        Self { changes: AtomicU32::new(0), words }
    }
}

#[cfg(test)]
impl Default for Visits {
    fn default() -> Self {
        Self(Line(std::array::from_fn(|_| AtomicU32::new(0))))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_visit_is_odd_and_each_has_another_number() {
        let visits = Visits::default();
        assert_eq!(visits.current(3), None);
        visits.begin(3);
        let first = visits.current(3);
        assert!(first.is_some() && visits.current(4).is_none());
        visits.end(3);
        assert_eq!(visits.current(3), None);
        visits.begin(3);
        assert!(visits.current(3).is_some() && visits.current(3) != first);
    }

    /// Another process chooses the indexes and the words.
    #[test]
    fn any_index_and_any_word_are_tolerated() {
        let (versions, visits) = (Versions::default(), Visits::default());
        versions.bump(u32::MAX);
        assert_eq!(
            (versions.get(u32::MAX), versions.get(0), versions.changes()),
            (None, Some(0), 0)
        );
        versions.bump(0);
        assert_eq!((versions.get(0), versions.changes()), (Some(1), 1));
        visits.begin(usize::MAX);
        visits.end(usize::MAX);
        assert_eq!(visits.current(usize::MAX), None);
        for word in [0, 1, u32::MAX - 1, u32::MAX] {
            visits.0[0].store(word, Ordering::Relaxed);
            visits.begin(0);
            assert!(visits.current(0).is_some());
            visits.0[0].store(word, Ordering::Relaxed);
            visits.end(0);
            assert_eq!(visits.current(0), None);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Shared {
        versions: Versions,
        visits: Visits,
        /// Two words of the owner's memory.
        memory: [AtomicU32; 2],
        /// The position up to which the user has written its ring.
        tail: AtomicU32,
    }

    impl Shared {
        /// Writes both words under a grant. Returns false if one of its versions has changed.
        fn write(&self, value: u32) -> bool {
            self.visits.begin(0);
            let valid = [0, 1].iter().all(|&index| self.versions.get(index) == Some(0));
            if valid {
                self.memory.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            }
            self.visits.end(0);
            valid
        }

        /// Revokes the grant, and waits for the visit, if there is one.
        fn revoke(&self, index: u32) {
            self.versions.bump(index);
            ordered();
            if let Some(visit) = self.visits.current(0) {
                while self.visits.current(0) == Some(visit) {
                    thread::yield_now();
                }
            }
        }

        /// Revokes the grant, and looks a few times whether the visit has ended. Returns false if it has not.
        fn revoke_impatiently(&self) -> bool {
            self.versions.bump(0);
            ordered();
            let visit = self.visits.current(0);
            visit.is_none() || (0..2).any(|_| self.visits.current(0) != visit)
        }

        fn memory(&self) -> [u32; 2] {
            [0, 1].map(|n: usize| self.memory[n].load(Ordering::Relaxed))
        }
    }

    /// A grant that is given while all grants end is invalid from then on.
    #[test]
    fn loom_a_version_that_is_lent_during_the_end_becomes_invalid() {
        loom::model(|| {
            let shared = Arc::new((Versions::default(), AtomicBool::new(false)));
            let lender = thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.0.lend(1, || shared.1.load(Ordering::Relaxed))
            });
            shared.1.store(true, Ordering::Relaxed);
            shared.0.end();
            let lent = lender.join().unwrap();
            assert!(lent.is_none() || lent != shared.0.get(1));
        });
    }

    /// Once the owner has revoked a grant and waited, the user writes nothing more, and everything that it wrote is
    /// visible. A write that the user counts as done was done before.
    #[test]
    fn loom_nothing_is_written_after_a_revocation() {
        for index in [0, 1] {
            loom::model(move || {
                let shared = Arc::new(Shared::default());
                let user = thread::spawn({
                    let shared = Arc::clone(&shared);
                    move || shared.write(7)
                });
                shared.revoke(index);
                let found = shared.memory();
                let written = user.join().unwrap();
                assert_eq!(shared.memory(), found);
                assert_eq!(found, if written { [7; 2] } else { [0; 2] });
            });
        }
    }

    /// The last packet of a WRITE with immediate data is sent after the visit that wrote the other bytes. Whenever the
    /// owner receives it, the bytes are there. A revocation before that does not lose or change them.
    #[test]
    fn loom_a_last_packet_arrives_after_the_bytes_before_it() {
        for index in [0, 1] {
            loom::model(move || {
                let shared = Arc::new(Shared::default());
                let user = thread::spawn({
                    let shared = Arc::clone(&shared);
                    move || {
                        let written = shared.write(7);
                        if written {
                            shared.tail.store(1, Ordering::Release);
                        }
                        written
                    }
                });
                let receive = || {
                    let arrived = shared.tail.load(Ordering::Acquire) == 1;
                    if arrived {
                        assert_eq!(shared.memory(), [7; 2]);
                    }
                    arrived
                };
                let before = receive();
                shared.revoke(index);
                let found = shared.memory();
                let after = receive();
                let written = user.join().unwrap();
                assert_eq!(shared.memory(), found);
                assert!(after || !before);
                assert_eq!((receive(), found == [7; 2]), (written, written));
            });
        }
    }

    /// The user dies within a visit, or stays there. The owner stops waiting, and the process no longer writes under a
    /// grant. If the owner finds no visit, nothing was written.
    #[test]
    fn loom_a_visit_without_end_does_not_hold_up_the_owner() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let user = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.visits.begin(0);
                    let valid = shared.versions.get(0) == Some(0);
                    if valid {
                        shared.memory[0].store(7, Ordering::Relaxed);
                    }
                    valid
                }
            });
            let has_ended = shared.revoke_impatiently();
            let valid = user.join().unwrap();
            assert!(!(has_ended && valid));
            assert_eq!(shared.memory(), if valid { [7, 0] } else { [0; 2] });
            assert!(!shared.write(9), "a later visit does not find the changed version");
        });
    }

    /// The owner waits only for the visit that it has found, not for later ones.
    #[test]
    fn loom_a_wait_ends_although_the_user_goes_on() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let user = thread::spawn({
                let shared = Arc::clone(&shared);
                move || (shared.write(1), shared.write(2))
            });
            shared.revoke(0);
            let found = shared.memory();
            let (first, second) = user.join().unwrap();
            assert!(first || !second);
            assert_eq!(shared.memory(), found);
        });
    }
}
