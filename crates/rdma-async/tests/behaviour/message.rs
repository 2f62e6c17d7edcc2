//! Streams and messages.

mod calls;
mod messages;
mod rig;
mod stream_ends;
mod streams;
