//! Programs that know only libibverbs or librdmacm, run with the libraries that `cargo xtask dropin` builds. A test is
//! skipped if its program is not installed.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

mod action;
mod c_programs;
mod channels;
mod devices;
mod faults;
mod library;
mod manager;
mod pods;
mod providers;
mod run;
mod two_processes;
