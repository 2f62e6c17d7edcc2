//! Groups of processes and of threads, on the software device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod arguments;
#[cfg(feature = "async")]
mod asynchronous;
mod choice;
mod collectives;
mod connecting;
mod failures;
mod launchers;
mod namespaces;
#[cfg(feature = "serde")]
mod network;
mod ranks;
