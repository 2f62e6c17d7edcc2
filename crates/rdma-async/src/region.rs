//! Memory that peers may reach for a time.

pub(crate) mod descriptor;
#[cfg(not(loom))]
mod kinds;
pub(crate) mod memory;
#[cfg(not(loom))]
mod probe;
pub(crate) mod reserve;
#[cfg(not(loom))]
mod reserve_for;
