//! Asynchronous events: their values, the log of a context, its readers, and the file that becomes readable.

pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod taker;
pub(crate) mod value;
