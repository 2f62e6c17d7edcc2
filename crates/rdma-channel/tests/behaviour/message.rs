//! Streams and messages.

mod ends;
mod messages;
mod process;
mod rig;
mod streams;
mod threads;
