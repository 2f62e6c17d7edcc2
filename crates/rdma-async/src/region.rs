//! Memory that peers may reach for a time.

pub(crate) mod descriptor;
pub(crate) mod memory;
pub(crate) mod reserve;
