//! The tasks that wait for an event of a connection.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// The place of a task among those that wait, which the task's future keeps. When the future is dropped, it removes the
/// task with [`Mailbox::forget`](super::Mailbox::forget).
#[derive(Debug, Default)]
pub struct Waiting(Option<u64>);

impl Waiting {
    /// Returns true if the task may be among those that wait.
    #[must_use]
    pub const fn is_registered(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the number of the task, which no other one has.
    fn number(&mut self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        *self.0.get_or_insert_with(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Tasks that wait for the same event.
#[derive(Debug, Default)]
pub(super) struct Tasks(Vec<(u64, Waker)>);

impl Tasks {
    /// Adds a task if there is a waker. Moves the task's earlier waker to `waker`, for the caller to drop without the
    /// lock.
    pub(super) fn wait(&mut self, waiting: &mut Waiting, waker: &mut Option<Waker>) {
        let Some(new) = waker.take() else { return };
        let number = waiting.number();
        match self.0.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) => *waker = Some(mem::replace(known, new)),
            None => self.0.push((number, new)),
        }
    }

    /// Removes a task. Returns its waker.
    pub(super) fn forget(&mut self, waiting: &mut Waiting) -> Option<Waker> {
        let number = waiting.0?;
        let at = self.0.iter().position(|(known, _)| *known == number)?;
        waiting.0 = None;
        Some(self.0.swap_remove(at).1)
    }

    pub(super) const fn are_waiting(&self) -> bool {
        !self.0.is_empty()
    }

    /// Removes all tasks, and adds their wakers to `woken`.
    pub(super) fn wake(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.0.drain(..).map(|(_, waker)| waker));
    }
}
