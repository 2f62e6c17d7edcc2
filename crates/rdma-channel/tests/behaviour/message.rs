//! Streams and messages.

mod ends;
mod messages;
mod offers;
mod process;
mod reports;
mod rig;
mod streams;
mod threads;
#[cfg(feature = "serde")]
mod values;
