//! Ports: their link, their state, and how much of a message fits into a packet.

pub(crate) mod link;
pub(crate) mod mtu;
pub(crate) mod state;
