//! Processes and threads that use a device.

pub(super) mod concurrency;
pub(super) mod forks;
pub(super) mod threads;
