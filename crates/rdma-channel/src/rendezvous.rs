//! The rendezvous: two ends that know an address of TCP, and nothing else of each other, become a channel.
//!
//! The messages, and both parts of the conversation, are those of `rdma-connect`. Here are the blocking drivers.

pub(crate) mod address;
pub(crate) mod builder;
mod client;
pub(crate) mod clients;
pub(crate) mod files;
pub(crate) mod incoming;
pub(crate) mod listener;
