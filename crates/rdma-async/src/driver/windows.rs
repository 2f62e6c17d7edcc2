//! Whether memory windows of a device can be used.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

/// What a driver knows of its device's windows.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) known: OnceLock<bool>,
    /// Where the answer comes, while a task finds it out.
    asked: Mutex<Option<watch::Receiver<Option<bool>>>>,
}

impl Windows {
    pub(crate) fn asked(&self) -> MutexGuard<'_, Option<watch::Receiver<Option<bool>>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
