//! Connections by an address: how they begin, and how one end notices that the other is gone.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod again;
mod bad_clients;
mod bad_peers;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod graceful;
mod meeting;

use common::host::{Host, SHORT};
use common::{HANG, WIRE, run};

const DEVICES: [&str; 3] = ["soft0", "softib0", WIRE];
