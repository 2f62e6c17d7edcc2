//! Shared receive queues.

pub(super) mod shared_receive_queues;
pub(super) mod shared_receives;
