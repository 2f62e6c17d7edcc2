//! The tasks that wait for a connection.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, OnceLock, PoisonError};

use super::after::contain_panic;
use super::slots::Side;
use crate::sync::{AtomicUsize, Mutex, Notify, Ordering};

/// The connections of a control connection that were closed, or whose send queues have drained, since its task last
/// settled connections. So the task settles only these, and not all of its connections.
#[derive(Debug)]
pub(crate) struct Changes {
    numbers: Mutex<BTreeSet<u32>>,
    task: Arc<Notify>,
}

impl Changes {
    /// Creates an empty set that notifies this task of each addition.
    pub(crate) fn new(task: Arc<Notify>) -> Self {
        Self { numbers: Mutex::default(), task }
    }

    fn add(&self, number: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        self.task.notify_one();
    }

    /// Removes and returns the numbers of the changed connections.
    pub(crate) fn take(&self) -> BTreeSet<u32> {
        mem::take(&mut self.numbers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The tasks that wait for a free slot of a connection. They are woken one at a time, and pass on a wake-up that they
/// do not need.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    sends: Arc<Notify>,
    receives: Arc<Notify>,
    /// Notified when the connection is closed or its send queue has drained.
    ended: Notify,
    /// The number of the connection and the set of its control connection, to which `close` adds it.
    control: OnceLock<(u32, Arc<Changes>)>,
    /// Counts the requests whose outcome was stored in their slots, and wraps around. Changed only under the ledger's
    /// lock.
    ends: AtomicUsize,
}

impl Waiters {
    pub(crate) const fn of(&self, side: Side) -> &Arc<Notify> {
        match side {
            Side::Send => &self.sends,
            Side::Receive => &self.receives,
        }
    }

    /// Counts a request whose outcome was stored in its slot. The caller holds the ledger's lock.
    #[inline]
    pub(crate) fn count_end(&self) {
        self.ends.store(self.ends.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Returns a number that has changed if a request has ended since an earlier call. A request that ends during this
    /// call may not be counted yet.
    pub(crate) fn ends(&self) -> usize {
        self.ends.load(Ordering::Acquire)
    }

    /// Wakes all waiters, because the connection is closed or its send queue has drained.
    pub(crate) fn close(&self) {
        contain_panic(|| self.sends.notify_waiters());
        contain_panic(|| self.receives.notify_waiters());
        contain_panic(|| self.ended.notify_waiters());
        if let Some((number, changes)) = self.control.get() {
            changes.add(*number);
        }
    }

    /// Returns the notification that is sent when the connection is closed or its send queue has drained.
    pub(crate) const fn ended(&self) -> &Notify {
        &self.ended
    }

    /// Sets the set to which [`close`](Self::close) adds the connection.
    pub(crate) fn set_control(&self, number: u32, changes: &Arc<Changes>) {
        let _ = self.control.set((number, Arc::clone(changes)));
    }
}
