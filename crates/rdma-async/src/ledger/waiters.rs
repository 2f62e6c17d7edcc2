//! The tasks that wait for a connection.

use std::sync::{Arc, OnceLock};

use super::after::contain_panic;
use super::slots::Side;
use crate::sync::Notify;

/// The tasks that wait for a free slot of a connection. They are woken one at a time, and pass on a wake-up that they
/// do not need.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    sends: Arc<Notify>,
    receives: Arc<Notify>,
    /// Notified when the connection is closed or its send queue has drained.
    ended: Notify,
    /// A notification for the control connection's task, sent together with `ended`.
    control: OnceLock<Arc<Notify>>,
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
        if let Some(control) = self.control.get() {
            control.notify_one();
        }
    }

    /// Returns the notification that is sent when the connection is closed or its send queue has drained.
    pub(crate) const fn ended(&self) -> &Notify {
        &self.ended
    }

    /// Sets the additional notification that [`close`](Self::close) sends.
    pub(crate) fn set_control(&self, control: &Arc<Notify>) {
        let _ = self.control.set(Arc::clone(control));
    }
}
