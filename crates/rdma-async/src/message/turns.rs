//! The order in which a thread processes the completions of several connections.
//!
//! A thread that polls a completion queue may deliver completions of any connection, and so wake it. A connection that
//! is woken during the turn of another one has its turn afterwards. So turns are not nested, and a thread holds the
//! lock of at most one connection. Memory that a turn releases is freed afterwards, too.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::buffer::held::Held;
use crate::ledger::after::contain_panic;

/// A connection that can be woken.
pub(super) trait Turn: Send + Sync {
    /// Processes completions.
    fn run(&self);
}

/// Work for the end of the outermost turn.
enum Due {
    Turn(Arc<dyn Turn>),
    /// Memory to free.
    Free(Held),
}

#[derive(Default)]
struct Turns {
    /// The number of turns that have begun on this thread, and have not ended.
    depth: usize,
    due: VecDeque<Due>,
}

thread_local! {
    static TURNS: RefCell<Turns> = RefCell::default();
}

/// A turn on this thread. After it has ended, the connections that were woken meanwhile have theirs.
#[must_use]
pub(super) struct Running(());

/// Begins a turn.
pub(super) fn begin() -> Running {
    let _ = TURNS.try_with(|turns| turns.borrow_mut().depth += 1);
    Running(())
}

impl Drop for Running {
    fn drop(&mut self) {
        while let Some(due) = next() {
            match due {
                // A subscriber of the program may panic. The turns after this one must still take place.
                Due::Turn(turn) => contain_panic(|| turn.run()),
                Due::Free(memory) => contain_panic(|| drop(memory)),
            }
        }
        let _ = TURNS.try_with(|turns| turns.borrow_mut().depth -= 1);
    }
}

/// Returns what is due next, if the current turn is the outermost one.
fn next() -> Option<Due> {
    TURNS
        .try_with(|turns| {
            let mut turns = turns.borrow_mut();
            if turns.depth == 1 { turns.due.pop_front() } else { None }
        })
        .ok()
        .flatten()
}

/// Gives a connection its turn, now or after the current one.
pub(super) fn wake(turn: Arc<dyn Turn>) {
    if let Some(Due::Turn(turn)) = defer(Due::Turn(turn)) {
        turn.run();
    }
}

/// Frees memory, now or after the current turn. The device is called if a window is deallocated, or a region is
/// deregistered. If that fails, an event of `tracing` reports it, and a subscriber is code of the program.
pub(super) fn free(memory: Held) {
    drop(defer(Due::Free(memory)));
}

/// Defers work until the end of the outermost turn. Returns it if there is no turn.
fn defer(due: Due) -> Option<Due> {
    let mut due = Some(due);
    let _ = TURNS.try_with(|turns| {
        let mut turns = turns.borrow_mut();
        if turns.depth > 0 {
            turns.due.extend(due.take());
        }
    });
    due
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts its turns, and then panics like a subscriber of the program.
    struct Panics(AtomicUsize);

    impl Turn for Panics {
        #[allow(clippy::panic)] // as the subscriber does
        fn run(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("a subscriber of the program");
        }
    }

    #[test]
    fn a_turn_that_panics_does_not_prevent_later_turns() {
        let turn = Arc::new(Panics(AtomicUsize::new(0)));
        for _ in 0..2 {
            let running = begin();
            wake(Arc::<Panics>::clone(&turn));
            wake(Arc::<Panics>::clone(&turn));
            drop(running);
        }
        assert_eq!(turn.0.load(Ordering::Relaxed), 4);
    }
}
