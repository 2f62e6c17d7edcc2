//! The tasks that wait for an event of a connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// An event that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A message has arrived.
    Receive,
    /// A message or a reply may begin.
    Send,
    /// A call may begin.
    Call,
    /// All operations that began before a flush were sent.
    Sent,
    /// The end of this end's messages, or of the connection.
    End,
}

impl Event {
    const COUNT: usize = Self::End as usize + 1;

    /// The events after which an operation may begin.
    pub(super) const STARTS: [Self; 2] = [Self::Send, Self::Call];
}

/// The place of a task among those that wait, which the task's future keeps. When the future is dropped, it removes the
/// task with [`Mailbox::forget`](super::Mailbox::forget).
#[derive(Debug, Default)]
pub struct Waiting(Option<(Event, u64)>);

impl Waiting {
    /// Returns true if the task may be among those that wait.
    #[must_use]
    pub const fn is_registered(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the event, and the number of the task, which no other one has. Tasks that wait later have larger numbers.
    fn place(&mut self, event: Event) -> (Event, u64) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        *self.0.get_or_insert_with(|| (event, NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Tasks that wait for each event, by number. A message that arrives, or an operation that ends, wakes the task that has
/// waited longest. If that task leaves, it wakes the next one, so no wake is lost. If it waits again, it is first again.
#[derive(Debug, Default)]
pub(super) struct Tasks([VecDeque<(u64, Waker)>; Event::COUNT]);

impl Tasks {
    /// Returns the tasks that wait for the event, and the index of the task among them, or where it belongs.
    fn find(
        &mut self,
        (event, task): (Event, u64),
    ) -> (&mut VecDeque<(u64, Waker)>, Result<usize, usize>) {
        let tasks = &mut self.0[event as usize];
        let at = tasks.binary_search_by_key(&task, |&(number, _)| number);
        (tasks, at)
    }

    /// Adds a task if there is a waker. Moves the task's earlier waker to `waker`, for the caller to drop without the
    /// lock.
    pub(super) fn wait(&mut self, event: Event, waiting: &mut Waiting, waker: &mut Option<Waker>) {
        let Some(new) = waker.take() else { return };
        let place = waiting.place(event);
        match self.find(place) {
            (tasks, Ok(at)) => *waker = Some(std::mem::replace(&mut tasks[at].1, new)),
            (tasks, Err(at)) => tasks.insert(at, (place.1, new)),
        }
    }

    /// Removes a task that has waited. Returns its event, and its waker unless it was woken.
    pub(super) fn forget(&mut self, waiting: &mut Waiting) -> Option<(Event, Option<Waker>)> {
        let place = waiting.0.take()?;
        let (tasks, at) = self.find(place);
        let removed = at.ok().and_then(|at| tasks.remove(at));
        Some((place.0, removed.map(|(_, waker)| waker)))
    }

    /// Returns true if a task waits for an event.
    pub(super) fn are_waiting(&self, event: Event) -> bool {
        !self.0[event as usize].is_empty()
    }

    /// Returns true if no task waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// Removes the task that has waited longest for an event, and adds its waker to `woken`.
    pub(super) fn wake_next(&mut self, event: Event, woken: &mut Vec<Waker>) {
        woken.extend(self.0[event as usize].pop_front().map(|(_, waker)| waker));
    }

    /// Removes the tasks that wait for an event, and adds their wakers to `woken`.
    pub(super) fn wake(&mut self, event: Event, woken: &mut Vec<Waker>) {
        woken.extend(self.0[event as usize].drain(..).map(|(_, waker)| waker));
    }

    /// Removes all tasks, and adds their wakers to `woken`.
    pub(super) fn wake_all(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.0.iter_mut().flat_map(|tasks| tasks.drain(..)).map(|(_, waker)| waker));
    }
}
