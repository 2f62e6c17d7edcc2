//! Datagrams and their destinations.

pub(super) mod address_handles;
pub(super) mod datagram_errors;
pub(super) mod datagrams;
pub(super) mod multicast;
pub(super) mod services;
