//! Memory that peers may access for a limited time.

pub(crate) mod descriptor;
#[cfg(not(loom))]
pub(crate) mod kinds;
pub(crate) mod memory;
#[cfg(not(loom))]
pub(crate) mod probe;
pub(crate) mod reserve;
#[cfg(not(loom))]
mod reserve_for;
