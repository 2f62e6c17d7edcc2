//! The rendezvous of two ends of an RDMA connection, the errors of connections, and the state of messages and streams.
//!
//! Programs use `rdma-channel` or `rdma-async`, which re-export the errors. This crate contains the parts that both
//! need:
//!
//! | | |
//! |---|---|
//! | errors | [`TransportError`], [`ConnectError`], [`CloseReason`] and their parts |
//! | the client | [`Dial`], the addresses to try, and [`Client`], its side of the conversation |
//! | the server | [`Clients`], which tracks each client from its first byte until the program takes it as a [`Candidate`] |
//! | messages | [`messaging`], the part that both drivers of messages and streams share |
//! | rdma_cm | the module `cm` (feature `cm`): private data and errors |
//! | both | [`Greeting`], the data that an end sends to the other end's program; [`KeepAlive`], which detects a silent peer |
//!
//! No type here has a socket, a clock or a thread. A driver passes in the time and the received bytes, and sends the
//! bytes that it gets back.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests start at some time

mod client;
mod clients;
#[cfg(feature = "cm")]
pub mod cm;
mod counters;
mod dial;
mod error;
mod farewell;
mod half_open;
mod keep_alive;
mod message;
pub mod messaging;
mod room;
mod until;
#[cfg(feature = "serde")]
mod value;

pub use client::Client;
pub use clients::{Clients, FIRST_KEY, listen_at_first};
pub use counters::ConnectionCounters;
pub use dial::{Dial, StreamAddresses, stream_addresses};
pub use error::close_reason::CloseReason;
pub use error::connect_error::ConnectError;
pub use error::lease_end::LeaseEnd;
pub use error::operation::Operation;
pub use error::peer::{PeerAddress, PeerId};
pub use error::rejected::Rejected;
pub use error::transport_error::{OperationError, TransportError};
pub use error::work::{FailedWork, RefusedWork, Reported, WorkId, cause_of};
pub use farewell::Farewell;
pub use half_open::{Candidate, ClientStream, Hello, MakeEnds, NoEnd};
pub use keep_alive::KeepAlive;
pub use message::Greeting;
pub use until::Until;
#[cfg(feature = "serde")]
pub use value::{ValueError, ValueExt, to_bytes};

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
