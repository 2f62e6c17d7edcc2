//! What the fuzz targets run: each takes any bytes, does with them what a peer could do, and panics if a rule is
//! broken.
//!
//! Tests run the same on the seeds and on random bytes (`tests/fuzz`), the fuzzers of `crates/fuzz` on what they make up.
//! An input is records of numbers, see [`input`]; behind its end are zeros.

mod connected;
mod datagrams;
#[path = "../../behaviour/pair/ends.rs"]
#[allow(dead_code)]
mod ends;
mod input;
mod packet;
mod peer;
mod posted;
mod requester;
mod responder;
mod unreliable;
mod watched;

pub(crate) use ends::{RKEY, VA};
pub(crate) use input::{Answer, Ask, Poll, Post, Setting, Tag};
pub(crate) use packet::run as packet;
pub(crate) use requester::run as requester;
pub(crate) use responder::run as responder;
