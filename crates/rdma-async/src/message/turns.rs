//! The order in which a thread processes the completions of several connections.
//!
//! A thread that polls a completion queue may deliver completions of any connection, and so wake it. A connection that
//! is woken during the turn of another one has its turn afterwards. So turns are not nested, and a thread holds the
//! lock of at most one connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// A connection that can be woken.
pub(super) trait Turn: Send + Sync {
    /// Processes completions.
    fn run(&self);
}

#[derive(Default)]
struct Turns {
    /// The number of turns that have begun on this thread, and have not ended.
    depth: usize,
    due: VecDeque<Arc<dyn Turn>>,
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
        while let Some(turn) = next() {
            turn.run();
        }
        let _ = TURNS.try_with(|turns| turns.borrow_mut().depth -= 1);
    }
}

/// Returns the next connection that is due, if the current turn is the outermost one.
fn next() -> Option<Arc<dyn Turn>> {
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
    let mut turn = Some(turn);
    let _ = TURNS.try_with(|turns| {
        let mut turns = turns.borrow_mut();
        if turns.depth > 0 {
            turns.due.extend(turn.take());
        }
    });
    if let Some(turn) = turn {
        turn.run();
    }
}
