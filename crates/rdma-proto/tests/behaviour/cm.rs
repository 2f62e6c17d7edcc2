//! Conversations of two communication managers in virtual time, as traces. `->` is a MAD of the left end, `<-` one of
//! the right end. A line that begins with the name of an end is an event for its program.

#![allow(clippy::cast_possible_truncation)]

mod calls;
mod captured;
mod ending;
mod establishment;
mod fates;
mod network;
mod queries;
mod random;
mod refusals;
mod unmatched;
mod wire;
