//! The tasks that wait for a connection.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, OnceLock, PoisonError};

use super::after::contain_panic;
use super::slots::Side;
use crate::sync::{Mutex, Notify};

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
}

impl Waiters {
    pub(crate) const fn of(&self, side: Side) -> &Arc<Notify> {
        match side {
            Side::Send => &self.sends,
            Side::Receive => &self.receives,
        }
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
