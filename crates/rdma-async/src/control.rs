//! Control connections: two ends that know an address of TCP become a connection, and each keeps its end of the stream as
//! long as the connection, so that the other one notices when it is gone.
//!
//! The messages are those of the [rendezvous](rdma_channel::ChannelListener) of channels, so that either end may also be a
//! channel. Nothing travels on the queue pair but what the programs post.

pub(crate) mod client;
pub(crate) mod incoming;
pub(crate) mod listener;
pub(crate) mod options;
pub(crate) mod watch;
