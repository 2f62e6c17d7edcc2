//! Asynchronous events: as values, the queue of a context, and the file that tells of them.

pub(crate) mod file;
pub(crate) mod queue;
pub(crate) mod value;
