//! The behaviour of the crate, in one program: a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod device;
mod files;
mod local_link;
mod mads;
mod no_thread;
mod told;
mod two_processes;
mod udp_link;
mod visible_copies;
