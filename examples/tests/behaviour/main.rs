//! The behaviour of the programs: a module for each, or for a subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod async_copy_file;
mod async_kv;
mod chat;
mod command_line;
mod common;
mod examples;
mod faults;
mod kv;
mod leases;
mod networks;
mod programs;
mod readme;
mod two_ends;
mod two_processes;
