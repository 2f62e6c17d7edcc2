//! The behaviour of the crate, in one program with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod cm;
mod conversations;
#[path = "../pcap/flow.rs"]
mod flow;
mod goodput;
mod pair;
#[path = "../pcap/mod.rs"]
mod pcap;
mod properties;
mod vectors;
