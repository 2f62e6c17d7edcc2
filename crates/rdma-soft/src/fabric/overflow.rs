//! What is to be done once a thread holds no lock: queue pairs of completion queues that overflowed are to be
//! told, which takes their locks, and events are to get their tokens, which takes a system call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rdma_types::AsyncEventKind;

use crate::engine::completion::CompletionQueue;
use crate::engine::events::Deliver;
use crate::sync::{ControlGuard, locked};

#[derive(Debug)]
struct Due {
    /// Completion queues that overflowed.
    failed: Vec<Arc<CompletionQueue>>,
    /// Event queues, each once, until its tokens are there.
    events: Vec<Arc<dyn Deliver>>,
    /// How many queues of each kind there are: there is room for them all, so that noting one does not
    /// allocate.
    completion_queues: usize,
    event_queues: usize,
}

/// All that is to be done, in the process.
#[derive(Debug)]
struct Unsettled {
    due: Mutex<Due>,
    /// How many are noted.
    count: AtomicUsize,
}

impl Unsettled {
    const fn new() -> Self {
        let due =
            Due { failed: Vec::new(), events: Vec::new(), completion_queues: 0, event_queues: 0 };
        Self { due: Mutex::new(due), count: AtomicUsize::new(0) }
    }

    fn lock(&self) -> ControlGuard<'_, Due> {
        locked(&self.due)
    }

    fn count(&self, due: &Due) {
        self.count.store(due.failed.len() + due.events.len(), Ordering::Release);
    }
}

#[cfg(not(loom))]
#[inline]
fn unsettled() -> &'static Unsettled {
    static ALL: Unsettled = Unsettled::new();
    &ALL
}

/// Of one model: each runs on one thread of the test program, beside others.
#[cfg(loom)]
fn unsettled() -> &'static Unsettled {
    thread_local! {
        static ALL: &'static Unsettled = Box::leak(Box::new(Unsettled::new()));
    }
    ALL.with(|all| *all)
}

/// Makes room for one more completion queue.
pub(crate) fn reserve() {
    let due = &mut *unsettled().lock();
    due.completion_queues += 1;
    due.failed.reserve(due.completion_queues - due.failed.len().min(due.completion_queues));
}

pub(crate) fn unreserve() {
    unsettled().lock().completion_queues -= 1;
}

/// Makes room for one more event queue.
pub(crate) fn reserve_events() {
    let due = &mut *unsettled().lock();
    due.event_queues += 1;
    due.events.reserve(due.event_queues - due.events.len().min(due.event_queues));
}

pub(crate) fn unreserve_events() {
    unsettled().lock().event_queues -= 1;
}

/// Notes that a queue lost a completion.
pub(crate) fn note(queue: &Arc<CompletionQueue>) {
    let mut due = unsettled().lock();
    if !due.failed.iter().any(|other| Arc::ptr_eq(other, queue)) {
        due.failed.push(Arc::clone(queue));
    }
    unsettled().count(&due);
}

/// Notes that events of a queue have no tokens; the queue is not noted yet.
pub(crate) fn note_events(queue: Arc<dyn Deliver>) {
    let mut due = unsettled().lock();
    due.events.push(queue);
    unsettled().count(&due);
}

/// Forgets a queue whose events have their tokens.
pub(crate) fn forget_events(queue: *const ()) {
    let mut due = unsettled().lock();
    if let Some(n) = due.events.iter().position(|other| Arc::as_ptr(other).cast::<()>() == queue) {
        let forgotten = due.events.swap_remove(n);
        unsettled().count(&due);
        drop(due);
        drop(forgotten);
    }
}

/// Moves the queue pairs of every queue that overflowed to error, and has the token of each event where the
/// program sees it. The caller holds no lock.
#[inline]
pub(crate) fn settle() {
    if unsettled().count.load(Ordering::Acquire) != 0 {
        settle_all();
    }
}

#[cold]
fn settle_all() {
    loop {
        let mut due = unsettled().lock();
        let queue = due.failed.pop();
        unsettled().count(&due);
        drop(due);
        let Some(queue) = queue else { break };
        queue.report_overflow();
        for n in (0..queue.users()).rev() {
            if let Some(queue_pair) = queue.user(n) {
                queue_pair.enter_error(None, Some(AsyncEventKind::QP_FATAL));
            }
        }
    }
    // Downwards, since who is forgotten is replaced by the last; what others add meanwhile is theirs.
    let count = unsettled().lock().events.len();
    for n in (0..count).rev() {
        let queue = unsettled().lock().events.get(n).map(Arc::clone);
        if let Some(queue) = queue {
            queue.deliver();
        }
    }
}
