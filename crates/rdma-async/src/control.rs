//! Control connections. Two ends that connect by a TCP address become a connection. Each keeps its end of the TCP
//! stream as long as the connection, so that the other end notices when it is gone.
//!
//! The handshake is the one of channels, so either end may also be a channel. After it, two ends of this crate exchange
//! frames about queue pairs that end, and about further ones ([`frame`]). The queue pair carries only what the programs
//! post.

pub(crate) mod client;
pub(crate) mod endpoint;
mod frame;
pub(crate) mod incoming;
pub(crate) mod listener;
mod maker;
mod meet;
mod meeting;
pub(crate) mod options;
pub(crate) mod reconnect;
pub(crate) mod shared;
mod socket;
mod stream;
