//! Control connections, which carry frames about connections over TCP.
//!
//! Two ends that connect by TCP address keep the TCP stream open until their connections end. Each end therefore
//! notices if the other end's process or machine disappears.
//!
//! The handshake is the same as for channels, so either end may also be a channel. After the handshake, two ends of
//! this crate exchange [frames](frame) about the end of queue pairs and about additional queue pairs. The queue pair
//! itself carries only what the programs post.

pub(crate) mod client;
#[cfg(feature = "cm")]
pub(crate) mod cm;
pub(crate) mod endpoint;
mod frame;
pub(crate) mod incoming;
pub(crate) mod listener;
mod maker;
mod negotiate;
mod negotiation;
pub(crate) mod options;
pub(crate) mod reconnect;
pub(crate) mod shared;
mod socket;
mod stream;
