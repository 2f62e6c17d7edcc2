//! The way in which a process notices that another one has changed its words.

use crate::link::executed::Executed;
use crate::sync::{AtomicU32, Ordering, fence};

/// The process notifies this one.
const LISTENS: u32 = 0;
/// The process does not notify this one, because no one waits for the words.
const QUIET: u32 = 1;
/// The process does not notify this one, because the driver looks at the words.
const POLLED: u32 = 2;

/// [`LISTENS`], [`QUIET`] or [`POLLED`].
#[derive(Debug, Default)]
pub(crate) struct Attention(AtomicU32);

impl Attention {
    /// Called when the driver starts to look at the words.
    pub(crate) fn start_polling(&self, executed: &Executed) {
        self.0.store(POLLED, Ordering::Release);
        fence(Ordering::SeqCst);
        executed.suppress_notifications();
    }

    /// Called when the driver no longer looks at the words. If `is_quiet` is set, no notifications are requested, unless
    /// a connection waits for its word: `are_awaited` returns true.
    pub(crate) fn stop_polling(
        &self,
        executed: &Executed,
        is_quiet: bool,
        are_awaited: impl FnOnce() -> bool,
    ) {
        self.0.store(if is_quiet { QUIET } else { LISTENS }, Ordering::Release);
        if is_quiet {
            executed.suppress_notifications();
        }
        // Either this thread sees that a connection waits, or the thread that counts it sees that no one looks.
        fence(Ordering::SeqCst);
        if !is_quiet || are_awaited() {
            self.0.store(LISTENS, Ordering::Release);
            executed.request_notifications();
        }
    }

    /// Requests notifications, unless the driver looks at the words. Called after a completion queue was armed, or after
    /// a connection that waits for its word was counted.
    pub(crate) fn listen(&self, executed: &Executed) {
        fence(Ordering::SeqCst);
        let set = |mode| (mode == QUIET).then_some(LISTENS);
        if self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, set).is_ok() {
            executed.request_notifications();
        }
    }

    /// Requests the next notification, because the peer sends one per request. The next look finds everything that was
    /// executed before the request.
    pub(crate) fn was_notified(&self, executed: &Executed) {
        if self.0.load(Ordering::Acquire) == LISTENS {
            executed.request_notifications();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::engine::wire::word::WordKey;
    use crate::link::executed::loom_tests::execute;

    #[derive(Default)]
    struct Shared {
        attention: Attention,
        executed: Executed,
        waiting: AtomicU32,
    }

    /// A connection starts to wait for its word while the driver stops looking, and the peer executes a request. The
    /// connection or the driver sees the word, or the peer notifies them.
    #[test]
    fn loom_a_word_is_seen_or_notified_if_a_connection_waits() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(4);
        builder.check(|| {
            let shared = Arc::new(Shared::default());
            let key = WordKey::new(0, 1);
            let moved = move |shared: &Shared| shared.executed.moves(key.group()) == 1;
            shared.attention.start_polling(&shared.executed);
            let responder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || execute(&shared.executed, key)
            });
            let connection = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.waiting.fetch_add(1, Ordering::Relaxed);
                    shared.attention.listen(&shared.executed);
                    moved(&shared)
                }
            });
            let are_awaited = || shared.waiting.load(Ordering::Relaxed) > 0;
            shared.attention.stop_polling(&shared.executed, true, are_awaited);
            let seen = moved(&shared);
            let seen = connection.join().unwrap() | seen;
            assert!(responder.join().unwrap() || seen);
        });
    }
}
