//! Memory that queue pairs reach: regions and windows, the domain that they belong to, from a key and an address to
//! memory, copies, and the wait of whoever takes memory back for all who may still be at it.

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
