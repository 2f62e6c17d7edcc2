//! RoCEv2 without sockets, clock or threads.
//!
//! What a packet means is decided here; who carries it, and when, is decided by the caller.
//!
//! - [`wire`] has the packets, byte by byte.
//! - A [`Requester`](requester::Requester) sends what is in a [`Work`] queue, and completes it.
//! - A [`Responder`](responder::Responder) has a [`Host`] execute what the peer asks for.
//! - Unreliable connections have an [`UnreliableRequester`] and an [`UnreliableResponder`]; datagrams have
//!   [`Datagrams`].
//!
//! # Rules
//!
//! - What comes from a peer is untrusted: any packet in any order is taken, dropped and counted, or answered.
//!   Nothing panics.
//! - Nothing allocates, but for [`Responder::new`](responder::Responder::new), and nothing grows.
//! - The caller finds the queue pair by the BTH, and sees to it that the packet came from the
//!   connected peer, with a right ICRC and partition. It drops all else, so that an unknown sender
//!   gets no answer. Responses ([`Operation::is_response`](wire::Operation::is_response)) go to the
//!   requester, all else to the responder.
//! - Time is an argument of calls ([`Time`]). A requester has a deadline, a responder has none.
//! - The unit to send and to receive is a [`Burst`].
//!
//! "IBTA" stands for the InfiniBand Architecture Specification, volume 1. RoCEv2 is its annex A17. Numbers of
//! sections, and of rules such as C9-88, are given where a public source confirms them.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod burst;
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
pub use operation::{End, Kind, MAX_MESSAGE_BYTES, Nak, Remote, Start, Stop};
pub use time::Time;
pub use unreliable::{UnreliableRequester, UnreliableResponder};
pub use work::{Request, Work};
