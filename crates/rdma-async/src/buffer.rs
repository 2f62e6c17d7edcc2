//! Buffers that operations take and return.

#[cfg(not(loom))]
mod growth;
pub(crate) mod held;
#[cfg(not(loom))]
pub(crate) mod pool;
pub(crate) mod shared;
pub(crate) mod view;
