//! The state in which peers need not notify this process of executed requests.

use crate::sync::{AtomicU32, Ordering, fence};

/// Set while no one waits for the acknowledgements of requests, so that peers need not notify this process of them.
///
/// The link's thread sets it before it sleeps; a thread that arms a completion queue clears it. This is Dekker's
/// algorithm: each side writes, then reads what the other wrote. So either the link's thread sees that the completion
/// queue is armed, or the arming thread sees that it must request notifications.
#[derive(Debug, Default)]
pub(crate) struct Quiet(AtomicU32);

impl Quiet {
    /// Called by the link's thread before it sleeps. Returns true if it need not request notifications, because
    /// `are_awaited` returns false. It holds the lock that the arming thread takes to request them.
    pub(crate) fn begin(&self, are_awaited: impl FnOnce() -> bool) -> bool {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_quiet = !are_awaited();
        if !is_quiet {
            self.0.store(0, Ordering::Relaxed);
        }
        is_quiet
    }

    /// Called after a completion queue was armed. Returns true if the caller must request notifications.
    pub(crate) fn end(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) == 1 && self.0.swap(0, Ordering::Relaxed) == 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_ends_it() {
        let quiet = Quiet::default();
        assert!(!quiet.end());
        assert!(quiet.begin(|| false));
        assert_eq!([quiet.end(), quiet.end()], [true, false]);
        assert!(!quiet.begin(|| true) && !quiet.end());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::engine::wire::word::WordKey;
    use crate::link::executed::Executed;
    use crate::link::executed::loom_tests::execute;

    #[derive(Default)]
    struct Shared {
        quiet: Quiet,
        armed: AtomicU32,
        executed: Executed,
        near: Mutex<()>,
    }

    /// A program arms a completion queue while the link's thread goes to sleep and the peer executes a request. The
    /// program or the thread sees the peer's word, or the peer notifies them.
    #[test]
    fn loom_an_awaited_word_is_seen_or_notified() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(4);
        builder.check(|| {
            let shared = Arc::new(Shared::default());
            let key = WordKey::new(0, 1);
            let moved = move |shared: &Shared| shared.executed.moves(key.group()) == 1;
            shared.executed.suppress_notifications();
            let responder = thread::spawn({
                let shared = Arc::clone(&shared);
                move || execute(&shared.executed, key)
            });
            let program = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.armed.fetch_add(1, Ordering::Relaxed);
                    if !shared.quiet.end() {
                        return false;
                    }
                    let _near = shared.near.lock().unwrap();
                    shared.executed.request_notifications();
                    moved(&shared)
                }
            });
            let seen = {
                let _near = shared.near.lock().unwrap();
                if shared.quiet.begin(|| shared.armed.load(Ordering::Relaxed) > 0) {
                    shared.executed.suppress_notifications();
                } else {
                    shared.executed.request_notifications();
                }
                moved(&shared)
            };
            let seen = program.join().unwrap() | seen;
            assert!(responder.join().unwrap() || seen);
        });
    }
}
