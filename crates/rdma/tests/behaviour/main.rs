//! The behaviour of the crate, in one program with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod child;
mod default_device;
mod devices;
mod errors;
mod faults;
mod features;
mod names;
mod uses;
