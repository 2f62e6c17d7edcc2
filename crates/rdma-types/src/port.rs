//! Ports: their link, their state, and their maximum packet payload.

pub(crate) mod link;
pub(crate) mod mtu;
pub(crate) mod state;
