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
pub(crate) type Tell = Box<dyn FnOnce() + Send>;

/// A source of events for the subscriber.
pub(crate) trait Tells: Send + Sync + std::fmt::Debug {
    /// Removes and returns the events that are due, or `None` if there are none.
    fn take(&'static self) -> Option<Tell>;

    /// Keeps the due events for later, because there is no subscriber now, or no thread that can report them.
    fn put_off(&self);
}

/// The maximum number of threads that report at the same time, even if a subscriber is slow or virtual time is fast.
const TELLERS: usize = 4;
pub(crate) static TELLING: AtomicUsize = AtomicUsize::new(0);

/// Counts one reporting thread until it is dropped, which also happens if the subscriber panics.
struct Teller;

impl Teller {
    fn new() -> Option<Self> {
        let one_more = |count| (count < TELLERS).then_some(count + 1);
        TELLING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self)
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        TELLING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reports the events of these sources to the subscriber of the calling thread, on a separate thread. Without a
/// subscriber, or while the maximum number of threads reports, the sources keep their events for later. If the system
/// cannot start a thread, the events are lost.
pub(crate) fn tell(who: &[&'static dyn Tells]) {
    // Without a subscriber, there is nothing to report to.
    let subscriber = subscriber();
    let Some((subscriber, teller)) = subscriber.and_then(|one| Some((one, Teller::new()?))) else {
        return who.iter().for_each(|one| one.put_off());
    };
    let due: Vec<_> = who.iter().filter_map(|one| one.take()).collect();
    if due.is_empty() {
        return;
    }
    tell_to(subscriber, move || {
        let _teller = teller;
        due.into_iter().for_each(|tell| tell());
    });
}

/// Like [`tell`], but reports a single event on behalf of a thread that settles work.
pub(crate) fn tell_aside(tell: impl FnOnce() + Send + 'static) {
    if let Some(subscriber) = subscriber() {
        tell_to(subscriber, tell);
    }
}

/// Returns this thread's subscriber. Returns `None` if it has none or is inside a call to it.
fn subscriber() -> Option<Dispatch> {
    let subscriber = tracing::dispatcher::get_default(Dispatch::clone);
    (!subscriber.is::<NoSubscriber>()).then_some(subscriber)
}

fn tell_to(subscriber: Dispatch, tell: impl FnOnce() + Send + 'static) {
    let tell = move || tracing::dispatcher::with_default(&subscriber, tell);
    // Models use their own threads.
    #[cfg(not(loom))]
    let _ = thread::spawn("rdma-soft events", thread::STACK_OF_PROGRAM, tell);
    #[cfg(loom)]
    drop(tell);
}
