//! What the devices of one world share: its clock, its deadlines, who is where, and what is left to be done.

pub(crate) mod clock;
pub(crate) mod devices;
pub(crate) mod ids;
pub(crate) mod overflow;
pub(crate) mod random;
mod thread;
pub(crate) mod timers;
