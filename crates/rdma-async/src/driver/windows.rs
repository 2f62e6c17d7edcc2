//! Remembers whether a device's memory windows can be used, once this has been tested.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

/// The result of the test for a driver's device.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) known: OnceLock<bool>,
    /// Receives the result while a task runs the test.
    asked: Mutex<Option<watch::Receiver<Option<bool>>>>,
}

impl Windows {
    pub(crate) fn asked(&self) -> MutexGuard<'_, Option<watch::Receiver<Option<bool>>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
