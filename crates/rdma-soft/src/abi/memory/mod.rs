//! Protection domains, memory regions and memory windows.

pub(super) mod mr;
pub(super) mod mw;
pub(super) mod pd;
