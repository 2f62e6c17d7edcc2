//! Streams and messages.

mod calls;
mod foreign_code;
mod messages;
mod rig;
mod stream_ends;
mod streams;
