//! Words in shared memory that show a process how far another one has executed its requests. Each connection has one
//! word, which contains the PSN of the next expected packet. The responder stores the word before its program can see
//! that a packet arrived. The word is therefore valid even if the responder's process exits right afterwards.
//!
//! With each word, the requester shows whether it retries without limit while the receiver is not ready. Either process
//! may write anything to this memory.

pub(crate) mod attention;
pub(crate) mod quiet;
pub(crate) mod versions;

use rdma_types::Psn;

use crate::engine::wire::word::{GROUPS, WORDS, WordKey};
use crate::sync::{AtomicU32, AtomicU64, Line, Ordering, fence};

/// The words in shared memory. With all bytes zero, no word is stored, and the requester is notified of each word.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Executed {
    /// Counters that change when a word of their group is stored.
    moves: Line<[AtomicU32; GROUPS]>,
    /// 1 if the requester looks without being notified, 0 if it sleeps, or [`NOTIFIED`].
    notifications: Line<AtomicU32>,
    words: Line<[AtomicU64; WORDS]>,
    /// For each word, the key of its user if that retries without limit, and otherwise 0.
    patient: Line<[AtomicU32; WORDS]>,
}

/// The value of `notifications` after the requester is notified and until it looks again.
const NOTIFIED: u32 = 2;

impl Executed {
    /// Responder: records that all packets before `expected` have been executed. Threads may store different words at the
    /// same time.
    pub(crate) fn store(&self, key: WordKey, expected: Psn) {
        let word = u64::from(key.raw()) << 32 | u64::from(expected.get());
        self.words[key.index()].store(word, Ordering::Release);
        // A requester that sees this change also sees the words of earlier changes, because no other thread's change is
        // overwritten.
        self.moves[key.group()].fetch_add(1, Ordering::AcqRel);
    }

    /// Responder: returns true if the requester must be notified of the word just stored.
    pub(crate) fn must_notify(&self) -> bool {
        // Either this thread sees that the requester is not looking, or the requester sees the stored word before it
        // sleeps.
        fence(Ordering::SeqCst);
        self.notifications.load(Ordering::Acquire) == 0
            && self.notifications.swap(NOTIFIED, Ordering::AcqRel) == 0
    }

    /// Responder: records that the notification failed, so that it is attempted again with the next word.
    pub(crate) fn notification_failed(&self) {
        self.notifications.store(0, Ordering::Release);
    }

    /// Requester: returns a number that changes whenever a word of the group is stored.
    pub(crate) fn moves(&self, group: usize) -> u32 {
        self.moves[group % GROUPS].load(Ordering::Acquire)
    }

    /// Requester: returns the PSN of the next expected packet, or `None` if nothing has been executed for this user of
    /// the word.
    pub(crate) fn expected(&self, key: WordKey) -> Option<Psn> {
        let word = self.words[key.index()].load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let psn = Psn::masked(word as u32);
        (word >> 32 == u64::from(key.raw())).then_some(psn)
    }

    /// Requester: records whether this user of the word retries without limit while the receiver is not ready.
    pub(crate) fn set_patient(&self, key: WordKey, is_patient: bool) {
        let user = if is_patient { key.raw() } else { 0 };
        self.patient[key.index()].store(user, Ordering::Release);
    }

    /// Responder: returns true if this user of the word retries without limit while the receiver is not ready.
    pub(crate) fn is_patient(&self, key: WordKey) -> bool {
        self.patient[key.index()].load(Ordering::Acquire) == key.raw()
    }

    /// Requester: announces that it looks at the words from now on without being notified.
    pub(crate) fn suppress_notifications(&self) {
        self.notifications.store(1, Ordering::Relaxed);
    }

    /// Requester: requests notifications from now on. A look after this call finds all words that were stored before
    /// the call.
    pub(crate) fn request_notifications(&self) {
        self.notifications.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Default for Executed {
    fn default() -> Self {
        Self {
            moves: Line(std::array::from_fn(|_| AtomicU32::new(0))),
            notifications: Line(AtomicU32::new(0)),
            words: Line(std::array::from_fn(|_| AtomicU64::new(0))),
            patient: Line(std::array::from_fn(|_| AtomicU32::new(0))),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_an_earlier_connection_is_ignored() {
        let executed = Executed::default();
        for index in [0, 1, WORDS - 1] {
            let [first, second] = [7, 8].map(|users| WordKey::new(index, users));
            assert_eq!((first.index(), second.index()), (index, index));
            assert_eq!((executed.expected(first), executed.moves(first.group())), (None, 0));
            executed.store(first, Psn::masked(9));
            assert_eq!(executed.expected(first), Some(Psn::masked(9)));
            assert_eq!((executed.expected(second), executed.moves(first.group())), (None, 1));
            executed.moves[first.group()].store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_the_present_user_of_a_word_is_patient() {
        let executed = Executed::default();
        for index in [0, WORDS - 1] {
            let [first, second] = [7, 8].map(|users| WordKey::new(index, users));
            let seen = || [first, second].map(|key| executed.is_patient(key));
            assert_eq!(seen(), [false, false]);
            executed.set_patient(first, true);
            assert_eq!(seen(), [true, false]);
            executed.set_patient(second, true);
            assert_eq!(seen(), [false, true]);
            executed.set_patient(second, false);
            assert_eq!(seen(), [false, false]);
        }
    }

    /// A peer may write anything, and a requester may have had any number of connections.
    #[test]
    fn every_key_maps_to_a_word() {
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
    use loom::thread;

    use super::*;

    /// Executes all packets before PSN 5, as a responder does. Returns true if the requester must be notified.
    pub(super) fn execute(executed: &Executed, key: WordKey) -> bool {
        executed.store(key, Psn::masked(5));
        executed.must_notify()
    }

    /// A requester that finds nothing and goes to sleep is notified of the next word. When the notification arrives,
    /// the word is visible.
    #[test]
    fn loom_a_word_is_seen_or_notified() {
        loom::model(|| {
            let executed = Arc::new(Executed::default());
            let key = WordKey::new(1, 0);
            executed.suppress_notifications();
            let responder = thread::spawn({
                let executed = Arc::clone(&executed);
                move || execute(&executed, key)
            });
            executed.request_notifications();
            let seen = executed.moves(key.group()) == 1;
            if seen {
                assert_eq!(executed.expected(key), Some(Psn::masked(5)));
            }
            assert!(responder.join().unwrap() || seen);
        });
    }

    /// Two threads execute packets from different inboxes. A requester that looks later finds both words, or sees that the
    /// counter has changed.
    #[test]
    fn loom_no_word_of_two_responders_is_missed() {
        loom::model(|| {
            let executed = Arc::new(Executed::default());
            let keys = [0, 1].map(|index| WordKey::new(index, 0));
            assert_eq!(keys[0].group(), keys[1].group());
            let responders = keys.map(|key| {
                let executed = Arc::clone(&executed);
                thread::spawn(move || executed.store(key, Psn::masked(5)))
            });
            let moves = executed.moves(0);
            let seen = keys.map(|key| executed.expected(key).is_some());
            responders.into_iter().for_each(|responder| responder.join().unwrap());
            assert!(seen == [true; 2] || executed.moves(0) != moves);
        });
    }

    /// A requester that finds all of its requests executed may use the memory itself. It sees their effects, and its own
    /// come after them.
    #[test]
    fn loom_a_mapped_request_comes_after_the_packets_before_it() {
        loom::model(|| {
            let shared = Arc::new((Executed::default(), AtomicU32::new(0)));
            let key = WordKey::new(1, 0);
            let responder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.1.store(1, Ordering::Relaxed);
                    execute(&shared.0, key)
                }
            });
            let is_executed = shared.0.expected(key) == Some(Psn::masked(5));
            if is_executed {
                assert_eq!(shared.1.load(Ordering::Relaxed), 1);
                shared.1.store(2, Ordering::Relaxed);
            }
            responder.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), if is_executed { 2 } else { 1 });
        });
    }

    /// A notification is also sent for the next word.
    #[test]
    fn loom_a_requester_is_notified_again_after_it_has_slept() {
        loom::model(|| {
            let shared = Arc::new((Executed::default(), AtomicU32::new(0)));
            let key = WordKey::new(0, 3);
            let responder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    for moves in 1..=2 {
                        shared.0.store(key, Psn::masked(moves));
                        if shared.0.must_notify() {
                            shared.1.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                }
            });
            // The first notification may or may not have arrived.
            let notified = shared.1.load(Ordering::Acquire);
            shared.0.request_notifications();
            let seen = shared.0.moves(0);
            responder.join().unwrap();
            assert!(seen == 2 || shared.1.load(Ordering::Acquire) > notified);
        });
    }
}
