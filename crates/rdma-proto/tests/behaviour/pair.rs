//! Conversations of a requester and a responder in virtual time, as traces. `->` is a packet of the requester, `<-` one
//! of the responder. The number is its PSN; a `-` after it means that it requests no acknowledgement. The MTU is 256.

#![allow(clippy::cast_possible_truncation)]

mod counters;
mod ends;
mod executed;
mod loss;
mod messages;
pub(crate) mod network;
mod probes;
pub(crate) mod random;
mod refusals;
mod rnr;
mod strangers;
mod unreliable;
