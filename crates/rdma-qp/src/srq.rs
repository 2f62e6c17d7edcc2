//! Shared receive queues.

pub(crate) mod builder;
pub(crate) mod queue;
