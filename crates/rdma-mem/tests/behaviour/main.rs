//! The behaviour of the crate, in one program with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod async_events;
mod buffer_pool;
mod devices;
mod dmabuf;
mod doors;
mod failing_provider;
mod mapped_regions;
mod panics;
mod pool_growth;
mod prefetch;
mod properties;
mod region_memory;
mod regions;
mod remote_fields;
mod serde;
mod windows;
