//! What the tests of this workspace share. Never published.
//!
//! - [`alloc_counter`]: proof that a piece of code does not allocate, on any thread.
//! - [`fault`]: faults that a test plants on purpose, as plain data.
//! - [`twins`]: what must not compile, beside what does.
//!
//! It knows no device, so that every crate can use it.

pub mod alloc_counter;
pub mod fault;
pub mod twins;
