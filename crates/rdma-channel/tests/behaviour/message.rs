//! Streams and messages.

mod ends;
mod messages;
mod rig;
mod streams;
