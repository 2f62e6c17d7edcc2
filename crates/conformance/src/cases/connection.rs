//! Connections: how each end affects the other.

pub(super) mod async_connections;
pub(super) mod async_leases;
pub(super) mod by_address;
pub(super) mod not_ready;
pub(super) mod over_tcp;
pub(super) mod unreachable;
pub(super) mod unreliable;
pub(super) mod unreliable_errors;
