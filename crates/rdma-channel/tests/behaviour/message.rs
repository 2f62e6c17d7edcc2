//! Streams and messages.

mod ends;
mod messages;
mod offers;
mod process;
mod rig;
mod streams;
mod threads;
