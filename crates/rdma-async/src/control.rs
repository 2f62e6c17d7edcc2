//! Control connections: two ends that know an address of TCP become a connection, and each keeps its end of the stream as
//! long as the connection, so that the other one notices when it is gone.
//!
//! The messages are those by which channels connect, so that either end may also be a
//! channel. Behind them, two ends of this crate speak of queue pairs that end, and of others ([`frame`]). Nothing travels on
//! the queue pair but what the programs post.

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
