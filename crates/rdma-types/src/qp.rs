//! Queue pairs: what kind one is, its number, its states, and what it is set to.

pub(crate) mod kind;
pub(crate) mod number;
pub(crate) mod psn;
pub(crate) mod retry;
pub(crate) mod state;
pub(crate) mod timer;
pub(crate) mod transition;
