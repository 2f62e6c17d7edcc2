//! The rendezvous: two ends that share only a TCP address establish a channel.
//!
//! `rdma-connect` defines the messages and both sides of the conversation. This module contains the blocking drivers.

pub(crate) mod address;
pub(crate) mod builder;
mod client;
pub(crate) mod clients;
#[cfg(feature = "cm")]
pub(crate) mod cm;
pub(crate) mod files;
pub(crate) mod incoming;
pub(crate) mod listener;
pub(crate) mod source;
