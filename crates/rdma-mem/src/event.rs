//! Asynchronous events: as values, their log of a context, who takes them, and the file that tells of them.

pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod taker;
pub(crate) mod value;
