//! Memory that queue pairs access: regions, windows and their protection domains, the lookup of memory by key and
//! address, and copies. This module also implements the wait for threads that may still use memory after its key was
//! invalidated.

mod barrier;
pub(crate) mod budget;
pub(crate) mod copy;
pub(crate) mod grace_period;
pub(crate) mod import;
pub(crate) mod keys;
pub(crate) mod probe;
pub(crate) mod protection;
pub(crate) mod region;
pub(crate) mod room;
pub(crate) mod sge;
pub(crate) mod window;
