//! Memory windows, the regions they are bound to, and their errors.

pub(crate) mod bindable;
pub(crate) mod error;
pub(crate) mod memory_window;
