//! Tests of the crate's behaviour in one program: a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod await_points;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod drop_orders;
mod leases;
mod message;
mod operations;
mod parity;
mod pool;
mod provider;
mod reserve;
mod reserve_for;
mod spans;
