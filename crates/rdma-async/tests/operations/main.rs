//! Operations: what they do, and what becomes of their memory when nobody waits for them.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod cancelled;
#[path = "../common/mod.rs"]
mod common;
mod done;
mod ended;
mod full;
mod spins;

use common::{Count, DEVICES, HANG, HELD, Pair, all, domain, poll_for, poll_once, run};
