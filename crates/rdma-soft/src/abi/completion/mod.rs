//! Completion queues, their channels, and asynchronous events.

pub(super) mod cq;
pub(super) mod cq_ex;
pub(super) mod event;
pub(super) mod poll;
mod poll_ex;
pub(super) mod polled;
