//! Memory that a peer may access: regions, windows, keys.

pub(super) mod binds;
pub(super) mod invalidation;
pub(super) mod keys;
pub(super) mod locked_memory;
pub(super) mod registration;
pub(super) mod windows;
