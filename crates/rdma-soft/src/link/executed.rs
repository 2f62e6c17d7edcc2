//! The words by which a process learns how far another one has executed its requests: one for each connection, with the
//! number of the packet that is expected next. The responder stores it before its program can see that a packet came, so
//! that it outlives a process that ends right then. Either process may have written anything there.

use rdma_types::Psn;

use crate::engine::wire::word::{GROUPS, WORDS, WordKey};
use crate::sync::{AtomicU32, AtomicU64, Line, Ordering, fence};

/// What is in the memory that two processes share. Zeros are words that nobody has stored, and each of which is told.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Executed {
    /// Each changes when a word of its group was stored.
    moves: Line<[AtomicU32; GROUPS]>,
    /// The requester looks without being told.
    looks: Line<AtomicU32>,
    words: Line<[AtomicU64; WORDS]>,
}

/// In place of `looks`: the requester was told, and has not looked since.
const TOLD: u32 = 2;

impl Executed {
    /// Responder: all packets before this one were executed. `moves` is another number each time.
    pub(crate) fn store(&self, key: WordKey, expected: Psn, moves: u32) {
        let word = u64::from(key.raw()) << 32 | u64::from(expected.get());
        self.words[key.index()].store(word, Ordering::Release);
        self.moves[key.group()].store(moves, Ordering::Release);
    }

    /// Responder: whether the requester is to be told of what was stored.
    pub(crate) fn is_to_be_told(&self) -> bool {
        // Either this sees that the requester does not look, or that one, before it sleeps, sees what was stored.
        fence(Ordering::SeqCst);
        self.looks.load(Ordering::Acquire) == 0 && self.looks.swap(TOLD, Ordering::AcqRel) == 0
    }

    /// Responder: the requester could not be told, and is to be told of the next word.
    pub(crate) fn has_not_told(&self) {
        self.looks.store(0, Ordering::Release);
    }

    /// Requester: what changes with each word of a group.
    pub(crate) fn moves(&self, group: usize) -> u32 {
        self.moves[group % GROUPS].load(Ordering::Acquire)
    }

    /// Requester: the packet that is expected next. `None` if nothing was executed for this user of the word.
    pub(crate) fn expected(&self, key: WordKey) -> Option<Psn> {
        let word = self.words[key.index()].load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let psn = Psn::masked(word as u32);
        (word >> 32 == u64::from(key.raw())).then_some(psn)
    }

    /// Requester: it looks at the words from now on, whatever it is told.
    pub(crate) fn look(&self) {
        self.looks.store(1, Ordering::Relaxed);
    }

    /// Requester: it is to be told of words from now on. Those that were stored before it finds when it looks after this.
    pub(crate) fn sleep(&self) {
        self.looks.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Default for Executed {
    fn default() -> Self {
        Self {
            moves: Line(std::array::from_fn(|_| AtomicU32::new(0))),
            looks: Line(AtomicU32::new(0)),
            words: Line(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_an_earlier_connection_says_nothing() {
        let executed = Executed::default();
        for index in [0, 1, WORDS - 1] {
            let [first, second] = [7, 8].map(|users| WordKey::new(index, users));
            assert_eq!((first.index(), second.index()), (index, index));
            assert_eq!((executed.expected(first), executed.moves(first.group())), (None, 0));
            executed.store(first, Psn::masked(9), 3);
            assert_eq!(executed.expected(first), Some(Psn::masked(9)));
            assert_eq!((executed.expected(second), executed.moves(first.group())), (None, 3));
            executed.moves[first.group()].store(0, Ordering::Relaxed);
        }
    }

    /// A peer may say anything, and a requester may have had any number of connections.
    #[test]
    fn every_key_names_a_word() {
        for raw in [1, 0x3ff, 0x400, u32::MAX] {
            let key = WordKey::of(raw).unwrap();
            assert!(key.index() < WORDS && key.group() < GROUPS);
        }
        assert_eq!(WordKey::of(0), None);
        for users in [0, 1, (1 << 22) - 2, (1 << 22) - 1, 1 << 22, u32::MAX] {
            let key = WordKey::new(WORDS - 1, users);
            assert_eq!(WordKey::of(key.raw()), Some(key));
            assert_eq!(key.index(), WORDS - 1);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// A requester that finds nothing, and goes to sleep, is told of what is stored; and what it is told of is there.
    #[test]
    fn loom_a_word_is_seen_or_told_of() {
        loom::model(|| {
            let shared = Arc::new((Executed::default(), AtomicBool::new(false)));
            let key = WordKey::new(1, 0);
            shared.0.look();
            let responder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.0.store(key, Psn::masked(5), 1);
                    if shared.0.is_to_be_told() {
                        shared.1.store(true, Ordering::Release);
                    }
                }
            });
            shared.0.sleep();
            let seen = shared.0.moves(key.group()) == 1;
            if seen {
                assert_eq!(shared.0.expected(key), Some(Psn::masked(5)));
            }
            responder.join().unwrap();
            assert!(seen || shared.1.load(Ordering::Acquire));
        });
    }

    /// The bell is for what is stored next, too.
    #[test]
    fn loom_a_requester_that_was_told_is_told_again_after_it_has_slept() {
        loom::model(|| {
            let shared = Arc::new((Executed::default(), AtomicU32::new(0)));
            let key = WordKey::new(0, 3);
            let responder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    for moves in 1..=2 {
                        shared.0.store(key, Psn::masked(moves), moves);
                        if shared.0.is_to_be_told() {
                            shared.1.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                }
            });
            // It has heard the first bell, or not.
            let heard = shared.1.load(Ordering::Acquire);
            shared.0.sleep();
            let seen = shared.0.moves(0);
            responder.join().unwrap();
            assert!(seen == 2 || shared.1.load(Ordering::Acquire) > heard);
        });
    }
}
