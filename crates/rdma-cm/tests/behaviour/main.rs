//! Connections on the software devices.
#![allow(clippy::unwrap_used, clippy::panic)] // A failing helper fails its test.

mod common;
mod connecting;
mod hostile;
mod other_hosts;
mod processes;
mod refusals;
mod unmanaged;
