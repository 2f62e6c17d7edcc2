//! Connected RDMA endpoints whose operations keep their memory alive and always end.
//!
//! A [`Channel`] is a connected queue pair. It borrows or owns the memory of an operation while the device may use that
//! memory, so operations need no `unsafe`. Each operation ends: with success, with an error, or at its time limit.
//!
//! ```
//! use rdma_channel::{Channel, prelude::*};
//!
//! rdma_soft::install(); // adds the software devices to those of the machine
//! let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
//! let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
//! let address = listener.local_addr();
//!
//! std::thread::scope(|threads| {
//!     // In a real program, this would be another process.
//!     let client = threads.spawn(|| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!         let mut channel = Channel::connect(address, &pd)?;
//!         let mut data = pd.allocate_region(5)?;
//!         data.copy_from_slice(b"hello");
//!         Ok(channel.send_from(&data)?)
//!     });
//!     let mut channel = listener.accept()?;
//!     let mut buffer = pd.allocate_region(64)?;
//!     let length = channel.receive_into(&mut buffer)?;
//!     assert_eq!(&buffer[..length], b"hello");
//!     client.join().unwrap()
//! })?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Where to begin
//!
//! | goal | use |
//! |---|---|
//! | connect two processes | [`Channel::connect`], and [`listen`](RendezvousBuilder::listen) of a [`ChannelBuilder`] |
//! | do the same over your own stream | [`exchange`], [`PreparedChannel::handshake`], [`confirm`] |
//! | run one operation at a time | [`Channel::send_from`], [`receive_into`](Channel::receive_into), [`write_from`](Channel::write_from), [`read_into`](Channel::read_into), [`fetch_add`](Channel::fetch_add) |
//! | set a time limit | [`Channel::within`], [`MultiChannel::within`], [`ChannelBuilder`] |
//! | keep many operations in flight | [`Channel::scope`], [`Channel::scope_deadline`] |
//! | reuse the same memory within a scope | [`ScopedPeer::send_from`] and its variants, [`InFlight`] |
//! | sleep, spin, or wait in your own event loop | [`Wait`], [`Channel::arm`] |
//! | serve clients that come and go | [`Server`], [`ServerEvent`] |
//! | choose how soon a silent machine counts as gone | [`ChannelBuilder::watch`] |
//! | talk to many peers with one completion queue | [`MultiChannel`] |
//! | exchange messages of any length, requests, or streams of bytes | [`message`] |
//! | handle errors | [`TransportError`], [`ScopeError`], [`CloseReason`] |
//!
//! The [guide] explains these topics in order: connecting, levels and forms, limits, waiting, and error handling.
//!
//! # Other crates
//!
//! Types of `rdma-qp` and `rdma-mem` that appear in signatures are re-exported here. Contexts, protection domains and
//! regions are created with `rdma-mem`. The crate `rdma` provides all of these crates as one dependency.
//!
//! # Features
//!
//! `serde` (off by default): makes [`PeerRemoteMemoryRegion`] serializable, and enables the same feature in rdma-qp and
//! rdma-mem. Also encodes values in messages (`Messages::send_value`).
//!
//! `cm` (off by default): connects channels and servers by rdma_cm (`Channel::connect_cm`, `ChannelBuilder::listen_cm`,
//! `ServerBuilder::bind_cm`), also to C programs that use librdmacm.

mod channel;
mod deadline;
mod exchange;
#[doc = include_str!("guide.md")]
pub mod guide {}
mod ledger;
mod lend;
mod limits;
pub mod message;
mod multi_channel;
pub mod prelude;
mod rendezvous;
mod request;
mod scope;
mod server;
mod within;

pub use channel::Channel;
pub use channel::builder::{ChannelBuilder, MultiChannelBuilder, WithoutPd};
pub use channel::prepared::PreparedChannel;
pub use channel::waiting::{Armed, Waitable};
pub use deadline::Wait;
pub use exchange::{ExchangeError, Pipes, TimedStream, confirm, exchange, exchange_all};
pub use multi_channel::MultiChannel;
pub use multi_channel::joining::PreparedPeer;
pub use multi_channel::prepared::PreparedMultiChannel;
pub use multi_channel::remote_memory_region::PeerRemoteMemoryRegion;
pub use multi_channel::to_peer::{
    PeerAtomicWorkRequest, PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest,
    PeerWriteWorkRequest, ToPeer,
};
pub use rendezvous::builder::{Rendezvous, RendezvousBuilder};
pub use rendezvous::incoming::Incoming;
pub use rendezvous::listener::ChannelListener;
pub use request::BatchRequest;
pub use scope::in_flight::InFlight;
pub use scope::outcome::{Finished, Late, Progress, Refused};
pub use scope::peer::ScopedPeer;
pub use scope::pending_word::PendingWord;
pub use scope::pending_work::{PendingWork, ScopedPendingWork};
pub use scope::rent::{Prefix, Rent, RentMut};
pub use scope::ring::{ReceiveRing, RingMessage};
pub use scope::{PollingScope, Scope, ScopeError, ScopeResult, TransportResult};
pub use server::Server;
pub use server::builder::ServerBuilder;
pub use server::event::{LeftReason, ServerError, ServerEvent};
pub use server::waker::Waker;
pub use within::Within;

pub use rdma_connect::{
    CloseReason, ConnectError, ConnectionCounters, FailedWork, LeaseEnd, Operation, OperationError,
    PeerAddress, PeerId, RefusedWork, Rejected, TransportError, WorkId,
};
pub use rdma_mem::{
    AccessFlags, Buffer, BufferPool, Error as MemoryError, GatherElement, GatherList,
    InlineElement, ProtectionDomain, Recovery, RemoteMemoryRegion, ScatterElement,
    ScatterGatherElementError, ScatterList, SharedElement, SliceMut, SliceRef,
};
pub use rdma_qp::{
    AckTimeout, AsyncEventKind, AtomicResult, AtomicWorkRequest, ConnectAttributes, EndpointError,
    Error, GidChoice, GidNetwork, Inline, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit,
    MinRnrTimer, PacketSequenceNumber, PollError, PostError, QpState, Qpn, QueuePairAttributes,
    QueuePairEndpoint, QueuePairType, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest,
    WorkError, WorkSuccess, WriteWorkRequest,
};

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
