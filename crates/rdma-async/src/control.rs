//! Control connections, which carry frames about connections over TCP.
//!
//! Two ends that connect by TCP address become a connection. Each end keeps its TCP stream open as long as the
//! connection, so the other end notices when the process or machine is gone.
//!
//! The handshake is that of channels, so either end may also be a channel. After the handshake, two ends of this crate
//! exchange frames about queue pairs that end and about additional ones ([`frame`]). The queue pair itself carries only
//! what the programs post.

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
