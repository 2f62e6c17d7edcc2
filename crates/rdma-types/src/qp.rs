//! Queue pairs: their types, numbers, states and attributes.

pub(crate) mod kind;
pub(crate) mod number;
pub(crate) mod psn;
pub(crate) mod retry;
pub(crate) mod state;
pub(crate) mod timer;
pub(crate) mod transition;
