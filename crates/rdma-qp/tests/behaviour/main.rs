//! The behaviour of the crate, in one program with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod async_events;
mod atomics;
#[path = "../common/mod.rs"]
mod common;
mod completion_channel;
mod completion_room;
mod data_order;
mod datagrams;
mod dmabuf;
mod doors;
mod drain;
mod environment;
mod extended;
mod forgotten;
mod gid_tables;
mod inline;
mod inline_wishes;
mod lying_provider;
mod managers_paths;
mod messages;
mod moderation;
mod modify;
mod multicast;
mod ported;
mod properties;
mod refusals;
mod refused_requests;
mod resizing;
mod serde;
mod shared_receives;
mod timestamps;
mod tracing;
mod traffic;
mod unreliable;
mod unwilling_provider;
mod windows;
