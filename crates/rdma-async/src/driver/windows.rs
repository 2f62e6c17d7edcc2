//! The state of the test whether memory windows of a device can be used.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

/// The driver's knowledge about the windows of its device.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) known: OnceLock<bool>,
    /// Receives the answer while a task determines it.
    asked: Mutex<Option<watch::Receiver<Option<bool>>>>,
}

impl Windows {
    pub(crate) fn asked(&self) -> MutexGuard<'_, Option<watch::Receiver<Option<bool>>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
