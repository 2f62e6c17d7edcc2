//! Streams and messages.

mod rig;
mod stream_ends;
mod streams;
