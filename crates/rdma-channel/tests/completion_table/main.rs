//! The completion table: what a device says of requests that are not in flight releases nothing,
//! and what it does not say of unsignaled ones is found out.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

#[path = "../common/mod.rs"]
mod common;

mod lies;
mod unsignaled;
