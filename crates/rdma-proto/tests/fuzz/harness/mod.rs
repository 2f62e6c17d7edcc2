//! The code of the fuzz targets. Each accepts any bytes, uses them as a peer could, and panics if a rule is broken.
//!
//! Tests run the same code on the seeds and on random bytes (`tests/fuzz`); the fuzzers of `crates/fuzz` generate their
//! own input. An input consists of records of numbers, see [`input`]; zeros follow its end.

mod connected;
mod datagrams;
#[path = "../../behaviour/pair/ends.rs"]
#[allow(dead_code)]
mod ends;
mod input;
mod mad;
mod packet;
mod peer;
mod posted;
mod requester;
mod responder;
mod unreliable;
mod watched;

pub(crate) use ends::{RKEY, VA};
pub(crate) use input::{Answer, Ask, Poll, Post, Setting, Tag};
pub(crate) use mad::run as mad;
pub(crate) use packet::run as packet;
pub(crate) use requester::run as requester;
pub(crate) use responder::run as responder;
