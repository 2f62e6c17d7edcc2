//! Registered memory: its keys, and what may be done with it.

pub(crate) mod access;
pub(crate) mod key;
