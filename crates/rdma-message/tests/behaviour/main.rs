//! The behaviour of the crate, in one program with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod bugs;
mod close;
mod credit;
mod hostile;
mod messages;
mod pair;
mod random;
mod requests;
mod streams;
