//! Memory windows, what they are bound to, and why they are not.

pub(crate) mod bindable;
pub(crate) mod error;
pub(crate) mod memory_window;
