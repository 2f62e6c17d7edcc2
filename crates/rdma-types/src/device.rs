//! Devices: what one is, what it can do, and what it reports by itself.

pub(crate) mod atomic;
pub(crate) mod capability;
pub(crate) mod event;
pub(crate) mod node;
