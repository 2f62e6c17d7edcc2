//! The behaviour of the crate, in one program: a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod batches;
mod clock;
#[cfg(feature = "cm")]
mod cm;
mod common;
mod completion_table;
mod counters;
mod credits;
mod endings;
mod exchange;
mod exchanges;
mod inline;
mod inline_copies;
mod message;
mod messages;
mod multi_channel;
mod noted;
mod options;
mod random_peers;
mod random_programs;
mod refusals;
mod rendezvous;
mod rented;
mod rings;
mod same_memory;
mod server;
mod sleeping;
mod slices;
mod spans;
mod watch;
