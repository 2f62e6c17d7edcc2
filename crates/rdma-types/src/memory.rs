//! Registered memory: its keys and its access rights.

pub(crate) mod access;
pub(crate) mod key;
