//! Protection domains, regions, windows.

pub(super) mod mr;
pub(super) mod mw;
pub(super) mod pd;
