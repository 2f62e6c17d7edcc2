//! Ports: their link, their state, and the most payload of a packet.

pub(crate) mod link;
pub(crate) mod mtu;
pub(crate) mod state;
