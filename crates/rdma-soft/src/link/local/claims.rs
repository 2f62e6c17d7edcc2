//! The connections of this process that learn by words what a process executes of theirs.

use std::sync::Weak;

use rdma_types::Psn;

use super::shared::RingSender;
use crate::engine::wire::word::{GROUPS, WORDS, WordKey};
use crate::fabric::run_queue::Task;
use crate::link::executed::Executed;
use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering, locked_in_models as locked};

/// Who has which word.
#[derive(Debug, Default)]
pub(super) struct Claims {
    words: Mutex<Words>,
    /// How many groups of words are in use.
    groups: AtomicUsize,
    /// What each group had [moved](Executed::moves) to when its words were looked at last.
    seen: [AtomicU32; GROUPS],
}

#[derive(Debug, Default)]
struct Words {
    /// How many there were, ever.
    users: u32,
    by_index: Vec<Option<Claim>>,
}

#[derive(Debug)]
struct Claim {
    key: WordKey,
    user: Weak<dyn Task>,
    /// What the word said when it was looked at last.
    seen: Option<Psn>,
}

impl Claims {
    /// The first word that is free. `None` if there is none.
    pub(super) fn claim(&self, user: Weak<dyn Task>) -> Option<WordKey> {
        let words = &mut *locked(&self.words);
        let free = words.by_index.iter().position(Option::is_none);
        let index = free.unwrap_or(words.by_index.len());
        if index >= WORDS {
            return None;
        }
        let key = WordKey::new(index, words.users);
        words.users = words.users.wrapping_add(1);
        let claim = Some(Claim { key, user, seen: None });
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

    /// The groups of which a word was stored that nobody has looked at.
    fn moved<'a>(&'a self, executed: &'a Executed) -> impl Iterator<Item = (usize, u32)> + 'a {
        let groups = self.groups.load(Ordering::Relaxed).min(GROUPS);
        (0..groups).filter_map(|group| {
            let moves = executed.moves(group);
            (moves != self.seen[group].load(Ordering::Relaxed)).then_some((group, moves))
        })
    }

    /// Whether there is a word that nobody has looked at.
    pub(super) fn have_news(&self, ring: &RingSender) -> bool {
        ring.executed().is_some_and(|executed| self.moved(executed).next().is_some())
    }

    /// Gives each connection a turn whose word says something new. Says whether there was one.
    pub(super) fn take_news(&self, ring: &RingSender) -> bool {
        let Some(executed) = ring.executed() else { return false };
        let mut found = false;
        for (group, moves) in self.moved(executed) {
            // Before its words are read: what is stored after that moves it again.
            self.seen[group].store(moves, Ordering::Relaxed);
            found |= self.call(group, executed);
        }
        found
    }

    fn call(&self, group: usize, executed: &Executed) -> bool {
        let mut found = false;
        let mut words = locked(&self.words);
        let of_group = words.by_index.chunks_mut(WORDS / GROUPS).nth(group).unwrap_or_default();
        for claim in of_group.iter_mut().flatten() {
            let expected = executed.expected(claim.key);
            if std::mem::replace(&mut claim.seen, expected) != expected
                && let Some(user) = claim.user.upgrade()
            {
                user.entry().queue();
                found = true;
            }
        }
        found
    }
}
