//! Providers with faults: what fails, or lies, takes no memory from the device that it may use, and leaves nobody waiting.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

#[path = "../common/mod.rs"]
mod common;
mod destroy;
mod polls;
mod posts;

use common::{DEFERRED, HELD};

/// Those that execute requests at once, later, and when they are told.
const DEVICES: [&str; 3] = ["soft0", DEFERRED, HELD];
