//! Completion queues, completion channels, and completions.

pub(crate) mod builder;
pub(crate) mod channel;
pub(crate) mod claim;
pub(crate) mod completion;
mod extended_poll;
mod needed;
pub(crate) mod poll_error;
pub(crate) mod queue;
mod timestamp;
pub(crate) mod work_error;
pub(crate) mod work_success;
