//! Devices, their ports, and contexts.

pub(super) mod context;
pub(super) mod list;
pub(super) mod mads;
pub(super) mod port;
pub(super) mod query;
pub(super) mod text;
