//! Buffers that operations take and return.

#[cfg(feature = "serde")]
mod bounded;
#[cfg(not(loom))]
mod growth;
pub(crate) mod held;
#[cfg(not(loom))]
pub(crate) mod pool;
pub(crate) mod shared;
#[cfg(feature = "serde")]
pub(crate) mod value;
pub(crate) mod view;
pub(crate) mod window;
