//! The words in which another process records how far it has executed this process's requests, and the connections that
//! read them.

use std::sync::{Arc, Weak};

use rdma_types::Psn;

use super::mapped::received::PeerGrant;
use super::shared::RingSender;
use crate::engine::wire::grant::Grant;
use crate::engine::wire::word::{GROUPS, WORDS, WordKey};
use crate::fabric::run_queue::Task;
use crate::link::executed::Executed;
use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering, locked_in_models as locked};

/// The words, and the connections that use them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    words: Mutex<Words>,
    /// The number of word groups in use.
    groups: AtomicUsize,
    /// A number that changes when a grant arrives or becomes invalid.
    granted: AtomicU32,
    /// The number of connections that wait for their words.
    waiting: AtomicU32,
    /// The value of each group's [counter](Executed::moves) when its words were last read.
    seen: [AtomicU32; GROUPS],
}

#[derive(Debug, Default)]
struct Words {
    /// The number of claims so far; it makes each key unique.
    users: u32,
    by_index: Vec<Option<Claim>>,
    /// Whether the process has ended, so that no connection gets a grant.
    ended: bool,
}

#[derive(Debug)]
struct Claim {
    key: WordKey,
    user: Weak<dyn Task>,
    /// The value of the word when it was last read.
    seen: Option<Psn>,
    /// The grants of the connection.
    grants: Vec<Arc<PeerGrant>>,
}

/// The maximum number of grants of a connection.
const MOST_GRANTS: usize = 256;

impl Claims {
    /// Claims the first free word for a connection. Returns `None` if all words are in use.
    pub(super) fn claim(&self, user: Weak<dyn Task>) -> Option<WordKey> {
        let words = &mut *locked(&self.words);
        let free = words.by_index.iter().position(Option::is_none);
        let index = free.unwrap_or(words.by_index.len());
        if index >= WORDS {
            return None;
        }
        let key = WordKey::new(index, words.users);
        words.users = words.users.wrapping_add(1);
        let claim = Some(Claim { key, user, seen: None, grants: Vec::new() });
        match free {
            Some(free) => words.by_index[free] = claim,
            None => words.by_index.push(claim),
        }
        self.groups.fetch_max(key.group() + 1, Ordering::Relaxed);
        Some(key)
    }

    pub(super) fn release(&self, key: WordKey) {
        let words = &mut *locked(&self.words);
        if let Some(place) = words.by_index.get_mut(key.index()) {
            place.take_if(|claim| claim.key == key);
        }
    }

    /// Counts a connection that starts or stops waiting for its word.
    pub(super) fn count_waiting(&self, is_one_more: bool) {
        let before = match is_one_more {
            true => self.waiting.fetch_add(1, Ordering::Relaxed),
            false => self.waiting.fetch_sub(1, Ordering::Relaxed),
        };
        debug_assert!(is_one_more || before > 0, "more connections stop waiting than started");
    }

    /// Returns true if a connection waits for its word.
    pub(super) fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Adds a grant for the connection that it is for, if that still exists.
    pub(super) fn add_grant(&self, grant: Arc<PeerGrant>) {
        let key = grant.terms.word;
        {
            let words = &mut *locked(&self.words);
            if words.ended {
                return;
            }
            let claim = words.by_index.get_mut(key.index()).and_then(Option::as_mut);
            let Some(claim) = claim.filter(|claim| claim.key == key) else { return };
            // The notification of its revocation may have come before. If the grant becomes invalid after this check,
            // the notification is still to come.
            if !grant.is_valid() {
                return;
            }
            claim.grants.retain(|other| other.terms.key != grant.terms.key);
            if claim.grants.len() >= MOST_GRANTS {
                return;
            }
            claim.grants.push(grant);
        }
        self.granted.fetch_add(1, Ordering::Release);
    }

    /// Drops invalid grants, and queues a turn for each connection that had one, so that it drops them too.
    pub(super) fn drop_invalid(&self) {
        let mut dropped = Vec::new();
        for claim in locked(&self.words).by_index.iter_mut().flatten() {
            let before = dropped.len();
            dropped.extend(claim.grants.extract_if(.., |grant| !grant.is_valid()));
            if dropped.len() > before {
                self.granted.fetch_add(1, Ordering::Release);
                if let Some(user) = claim.user.upgrade() {
                    user.entry().queue();
                }
            }
        }
        // The mappings are released without the lock.
        drop(dropped);
    }

    /// Drops all grants, because the process has ended. Connections may exist for long after that. The caller queues a
    /// turn for each connection, so that it drops them too.
    pub(super) fn end_grants(&self) {
        let mut dropped = Vec::new();
        {
            let words = &mut *locked(&self.words);
            words.ended = true;
            words.by_index.iter_mut().flatten().for_each(|claim| dropped.append(&mut claim.grants));
        }
        self.granted.fetch_add(1, Ordering::Release);
        drop(dropped);
    }

    /// Returns a number that changes when a grant arrives or becomes invalid.
    pub(super) fn granted(&self) -> u32 {
        self.granted.load(Ordering::Acquire)
    }

    /// Returns the grants of a connection.
    pub(super) fn grants(&self, key: WordKey) -> Vec<Arc<dyn Grant>> {
        let words = locked(&self.words);
        let claim = words.by_index.get(key.index()).and_then(Option::as_ref);
        let claim = claim.filter(|claim| claim.key == key);
        let all = claim.map_or(&[][..], |claim| &claim.grants);
        all.iter().map(|grant| Arc::<PeerGrant>::clone(grant) as Arc<dyn Grant>).collect()
    }

    /// Returns the groups in which a word has been stored but not read yet.
    fn moved<'a>(&'a self, executed: &'a Executed) -> impl Iterator<Item = (usize, u32)> + 'a {
        let groups = self.groups.load(Ordering::Relaxed).min(GROUPS);
        (0..groups).filter_map(|group| {
            let moves = executed.moves(group);
            (moves != self.seen[group].load(Ordering::Relaxed)).then_some((group, moves))
        })
    }

    /// Returns true if a word has been stored but not read yet.
    pub(super) fn has_changed(&self, ring: &RingSender) -> bool {
        ring.executed().is_some_and(|executed| self.moved(executed).next().is_some())
    }

    /// Notifies each connection whose word has changed. Returns true if any word has. The caller holds no lock of the
    /// engine.
    pub(super) fn notify_changed(&self, ring: &RingSender) -> bool {
        let Some(executed) = ring.executed() else { return false };
        let mut found = false;
        for (group, moves) in self.moved(executed) {
            // Stored before the group's words are read, because a word that is stored later changes the counter again.
            self.seen[group].store(moves, Ordering::Relaxed);
            found |= self.notify_changed_in(group, executed);
        }
        found
    }

    fn notify_changed_in(&self, group: usize, executed: &Executed) -> bool {
        let (mut found, mut next) = (false, 0);
        while let Some((index, user)) = self.next_changed(group, next, executed) {
            next = index + 1;
            user.word_has_changed();
            found = true;
        }
        found
    }

    /// Returns the user of the first changed word of a group, from this index in the group on.
    fn next_changed(
        &self,
        group: usize,
        from: usize,
        executed: &Executed,
    ) -> Option<(usize, Arc<dyn Task>)> {
        let mut words = locked(&self.words);
        let of_group = words.by_index.chunks_mut(WORDS / GROUPS).nth(group)?;
        of_group.iter_mut().enumerate().skip(from).find_map(|(index, claim)| {
            let claim = claim.as_mut()?;
            let expected = executed.expected(claim.key);
            let is_changed = std::mem::replace(&mut claim.seen, expected) != expected;
            let user = if is_changed { claim.user.upgrade() } else { None };
            user.map(|user| (index, user))
        })
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};

    use rustix::fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create,
    };

    use super::super::mapped::received::{Arrived, Received};
    use super::super::mapped::{Terms, VERSIONS};
    use super::super::neighbor::Neighbor;
    use super::*;
    use crate::engine::wire::grant::Version;

    fn memory(length: u64) -> OwnedFd {
        let file = memfd_create("claims", MemfdFlags::ALLOW_SEALING).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, length).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        file
    }

    /// Its revocation may have been noticed while its memory was populated. No notification follows, so the mapping
    /// would keep the memory of a region that was deregistered.
    #[test]
    fn a_grant_that_was_revoked_before_it_is_added_is_dropped() {
        let page = rustix::param::page_size() as u64;
        let (claims, received) = (Claims::default(), Received::default());
        received.accept(&[VERSIONS], memory(page).as_fd()).unwrap();
        let word = claims.claim(Weak::<Neighbor>::new()).unwrap();
        for (value, kept) in [(1, 0), (0, 1)] {
            let versions = [Version { index: 0, value: 0 }, Version { index: 1, value }];
            let (key, iova, length, access) = (7, 0, page, 0);
            let terms = Terms { word, key, iova, length, access, versions };
            let arrived = received.accept(&terms.encode(), memory(page).as_fd()).unwrap();
            let Arrived::Grant(grant) = arrived else { panic!("{arrived:?}") };
            claims.add_grant(grant);
            assert_eq!(claims.grants(word).len(), kept);
        }
    }
}
