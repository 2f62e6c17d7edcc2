//! Devices, their ports, and contexts.

pub(super) mod context;
pub(super) mod list;
#[cfg(not(loom))] // models have no management datagrams
pub(super) mod mads;
pub(super) mod port;
pub(super) mod query;
pub(super) mod text;
