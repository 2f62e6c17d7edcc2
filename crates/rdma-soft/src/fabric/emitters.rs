//! Threads that report events to the program's [`tracing`] subscriber.
//!
//! A subscriber belongs to the program: it may call verbs, wait, or panic. But a thread that drops a packet holds
//! locks. A thread that settles work may be in the middle of a call by the program, even in a critical region. So a
//! separate thread reports the events, and then ends.

use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

#[cfg(not(loom))]
use crate::fabric::thread;

/// Reports events to the subscriber of the calling thread.
pub(crate) type Emit = Box<dyn FnOnce() + Send>;

/// A source of events for the subscriber.
pub(crate) trait EventSource: Send + Sync + std::fmt::Debug {
    /// Removes and returns the events that are due, or `None` if there are none.
    fn take_due(&'static self) -> Option<Emit>;

    /// Keeps the due events for later, because there is no subscriber now, or no thread that can report them.
    fn postpone(&self);
}

/// The maximum number of threads that report at the same time, even if a subscriber is slow or virtual time is fast.
const EMITTERS: usize = 4;
pub(crate) static EMITTING: AtomicUsize = AtomicUsize::new(0);

/// Counts one reporting thread until it is dropped, which also happens if the subscriber panics.
struct Emitter;

impl Emitter {
    fn new() -> Option<Self> {
        let one_more = |count| (count < EMITTERS).then_some(count + 1);
        EMITTING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self)
    }
}

impl Drop for Emitter {
    fn drop(&mut self) {
        EMITTING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reports the events of these sources to the subscriber of the calling thread, on a separate thread. Without a
/// subscriber, or while the maximum number of threads reports, the sources keep their events for later. If the system
/// cannot start a thread, the events are lost.
pub(crate) fn emit(sources: &[&'static dyn EventSource]) {
    // Without a subscriber, there is nothing to report to.
    let subscriber = subscriber();
    let Some((subscriber, emitter)) = subscriber.and_then(|one| Some((one, Emitter::new()?)))
    else {
        return sources.iter().for_each(|source| source.postpone());
    };
    let due: Vec<_> = sources.iter().filter_map(|source| source.take_due()).collect();
    if due.is_empty() {
        return;
    }
    emit_to(subscriber, move || {
        let _emitter = emitter;
        due.into_iter().for_each(|emit| emit());
    });
}

/// Like [`emit`], but reports a single event on behalf of a thread that settles work.
pub(crate) fn emit_one(emit: impl FnOnce() + Send + 'static) {
    if let Some(subscriber) = subscriber() {
        emit_to(subscriber, emit);
    }
}

/// Returns this thread's subscriber. Returns `None` if it has none or is inside a call to it.
fn subscriber() -> Option<Dispatch> {
    let subscriber = tracing::dispatcher::get_default(Dispatch::clone);
    (!subscriber.is::<NoSubscriber>()).then_some(subscriber)
}

fn emit_to(subscriber: Dispatch, emit: impl FnOnce() + Send + 'static) {
    let emit = move || tracing::dispatcher::with_default(&subscriber, emit);
    // Models use their own threads.
    #[cfg(not(loom))]
    let _ = thread::spawn("rdma-soft events", thread::STACK_OF_PROGRAM, emit);
    #[cfg(loom)]
    drop(emit);
}
