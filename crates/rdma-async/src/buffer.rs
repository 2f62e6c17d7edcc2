//! Memory that operations take by value and give back.

pub(crate) mod held;
pub(crate) mod shared;
pub(crate) mod view;
