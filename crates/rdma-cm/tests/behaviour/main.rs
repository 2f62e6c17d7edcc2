//! Connections on the software devices.
#![allow(clippy::unwrap_used, clippy::panic)] // A failing helper fails its test.

mod common;
mod connecting;
mod errors;
mod groups;
mod hostile;
mod kernel;
mod library;
mod many_files;
mod options;
mod orders;
mod other_hosts;
mod owners;
mod parts;
mod phases;
mod processes;
mod refusals;
mod removal;
mod simulated;
mod unmanaged;
