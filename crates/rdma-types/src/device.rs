//! Devices: their types, their capabilities, and the events that they report.

pub(crate) mod atomic;
pub(crate) mod capability;
pub(crate) mod event;
pub(crate) mod node;
