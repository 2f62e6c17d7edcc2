//! Asynchronous events: their values, a context's log and its readers, and the files that signal
//! events.

pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod taker;
pub(crate) mod value;
