//! Completion queues that overflowed and whose queue pairs are still to be told.
//!
//! Telling takes the locks of queue pairs, so that it cannot be done where the overflow is seen.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rdma_sys::ibv_event_type;

use crate::engine::completion::CompletionQueue;
use crate::sync::locked;

static FAILED: Mutex<Vec<Arc<CompletionQueue>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
static QUEUES: AtomicUsize = AtomicUsize::new(0);

/// Makes room for one more completion queue, so that an overflow does not allocate.
pub(crate) fn reserve() {
    let queues = QUEUES.fetch_add(1, Ordering::Relaxed) + 1;
    let mut failed = locked(&FAILED);
    let more = queues.saturating_sub(failed.len());
    failed.reserve(more);
}

pub(crate) fn unreserve() {
    QUEUES.fetch_sub(1, Ordering::Relaxed);
}

/// Notes that a queue lost a completion.
pub(crate) fn note(queue: &Arc<CompletionQueue>) {
    let mut failed = locked(&FAILED);
    if !failed.iter().any(|other| Arc::ptr_eq(other, queue)) {
        failed.push(Arc::clone(queue));
    }
    COUNT.store(failed.len(), Ordering::Release);
}

/// Moves the queue pairs of every queue that overflowed to error. The caller holds no lock.
#[inline]
pub(crate) fn settle() {
    if COUNT.load(Ordering::Acquire) != 0 {
        settle_all();
    }
}

#[cold]
fn settle_all() {
    loop {
        let mut failed = locked(&FAILED);
        let queue = failed.pop();
        COUNT.store(failed.len(), Ordering::Release);
        drop(failed);
        let Some(queue) = queue else { return };
        queue.report_overflow();
        for n in (0..queue.users()).rev() {
            if let Some(queue_pair) = queue.user(n) {
                queue_pair.enter_error(None, Some(ibv_event_type::IBV_EVENT_QP_FATAL));
            }
        }
    }
}
