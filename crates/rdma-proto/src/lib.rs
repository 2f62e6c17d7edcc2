//! RoCEv2 without sockets, clocks or threads.
//!
//! This crate decides what a packet means. The caller carries the packets and decides when to send
//! them.
//!
//! - [`wire`] defines the packets, byte by byte.
//! - A [`Requester`](requester::Requester) sends the requests in a [`Work`] queue and completes
//!   them.
//! - A [`Responder`](responder::Responder) executes the peer's requests on a [`Host`].
//! - Unreliable connections have an [`UnreliableRequester`] and an [`UnreliableResponder`];
//!   datagrams have [`Datagrams`].
//! - [`cm`] establishes and ends connections by management datagrams, as rdma_cm does. It has rules
//!   of its own.
//!
//! # Rules
//!
//! - Input from a peer is untrusted: any packet may arrive at any time. It is accepted, answered,
//!   or dropped and counted. Nothing panics.
//! - Nothing allocates, except [`Responder::new`](responder::Responder::new) and [`cm`], and nothing
//!   grows without a limit.
//! - The caller finds the queue pair that the BTH names. It also checks that the packet came from
//!   the connected peer, with the right ICRC and partition. It drops all other packets, so an
//!   unknown sender gets no answer. Responses
//!   ([`Operation::is_response`](wire::Operation::is_response)) go to the requester, all other
//!   packets to the responder.
//! - Calls take the time as an argument ([`Time`]). A requester has a deadline; a responder has
//!   none.
//! - The unit of sending and receiving is a [`Burst`].
//!
//! "IBTA" is the InfiniBand Architecture Specification, volume 1. RoCEv2 is its annex A17. Section
//! numbers, and rule numbers such as C9-88, are given where a public source confirms them.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod burst;
pub mod cm;
mod connection;
mod counters;
mod datagram;
mod host;
mod operation;
pub mod requester;
pub mod responder;
mod segmentation;
mod time;
mod unreliable;
pub mod wire;
mod work;

pub use burst::{Burst, Last};
pub use connection::Connection;
pub use counters::Counters;
pub use datagram::{Datagrams, Delivered, Destination, Source};
pub use host::Host;
pub use operation::{Kind, MAX_MESSAGE_BYTES, MessageEnd, MessageStart, Nak, Remote, Stop};
pub use time::Time;
pub use unreliable::{UnreliableRequester, UnreliableResponder};
pub use work::{Work, Wqe};

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
