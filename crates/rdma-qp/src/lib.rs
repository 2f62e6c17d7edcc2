//! RDMA completion queues, queue pairs, work requests and completions.
//!
//! | step | here |
//! |---|---|
//! | create a completion queue | [`CompletionQueue::create`], or with timestamps, [`CompletionQueue::builder`] |
//! | share receives among queue pairs | `pd.create_srq()` of the [`prelude`], [`SharedReceiveQueue`] |
//! | create a queue pair | `pd.create_qp()` of the [`prelude`], [`QueuePairBuilder`] |
//! | send the endpoint to the peer | [`PreparedQueuePair::endpoint`], [`QueuePairEndpoint::to_bytes`] |
//! | connect | [`PreparedQueuePair::handshake`] |
//! | send datagrams | [`PreparedQueuePair::activate`], [`QueuePair::address_handle`], [`SendWorkRequest::to`] |
//! | post requests | [`QueuePair::post`], for one kind [`post_send`](QueuePair::post_send) …, for batches [`post_batch`](QueuePair::post_batch) |
//! | lend memory, and revoke the access | [`QueuePair::bind`], [`LocalInvalidate`], [`SendWithInvalidate`] |
//! | poll completions | [`CompletionQueue::poll`] |
//! | sleep until one arrives | [`CompletionQueue::req_notify`], [`CompletionChannel::get_event`] |
//! | end a connection | [`QueuePair::drain`], [`QueuePair::to_error`] |
//!
//! # The raw level
//!
//! Posting is `unsafe`. The device uses the memory of a request until the request completes. Nothing in this crate
//! prevents other code from using that memory at the same time. But the crate does ensure that objects are destroyed in
//! the right order. It also ensures that elements are within their regions. Except for raw posts, it also ensures that
//! requests stay within the remote memory that they name. Undefined values of a completion cannot be read.
//!
//! Posting and polling do only what the same calls in C do. They do not allocate, lock, or keep additional counts.
//!
//! # Two levels of posting
//!
//! | mistake in a request | [`post`](QueuePair::post), `post_send` …, [`post_batch`](QueuePair::post_batch), `post_receive_batch` | [`post_raw`](QueuePair::post_raw), `post_batch_raw`, `post_receive_batch_raw` |
//! |---|---|---|
//! | an element outside of its region | cannot be created | cannot be created |
//! | elements longer than the remote memory | [`RemoteTooShort`](PostErrorKind::RemoteTooShort) | overwrites the memory after it, or fails at the peer |
//! | more elements than the queue supports | [`TooManyElements`](PostErrorKind::TooManyElements) | the provider refuses ([`Refused`](PostErrorKind::Refused)) |
//! | more inline bytes than the queue pair supports | [`TooMuchInline`](PostErrorKind::TooMuchInline) | the provider refuses |
//! | a registered slice from another domain, in a [list](rdma_mem::GatherList) | [`WrongDomain`](PostErrorKind::WrongDomain) | a failed completion |
//! | an element from another domain, not in a list | a failed completion | a failed completion |
//! | an atomic at an address that is not a multiple of 8 | [`Misaligned`](PostErrorKind::Misaligned) | a failed completion |
//! | an atomic whose result is not 8 bytes long | [`AtomicResult`](PostErrorKind::AtomicResult) | a failed completion, or only a part of the result |
//! | a request that the type of the queue pair does not support | [`Opcode`](PostErrorKind::Opcode) | the provider refuses |
//! | an atomic on a device without atomics | [`NoAtomics`](PostErrorKind::NoAtomics) | the provider refuses, or a failed completion |
//! | a datagram without a destination, or a destination on a connected queue pair | [`NoDestination`](PostErrorKind::NoDestination), [`Destination`](PostErrorKind::Destination) | the provider refuses, or uses other contents of the request as the handle |
//! | a datagram longer than the MTU | [`LongerThanMtu`](PostErrorKind::LongerThanMtu) | a failed completion |
//! | an address handle from another domain | [`ForeignHandle`](PostErrorKind::ForeignHandle) | a failed completion |
//! | a receive for a queue pair with a shared receive queue | [`SharedReceives`](PostErrorKind::SharedReceives) | `SharedReceives` |
//! | a full queue | [`WouldBlock`](PostErrorKind::WouldBlock) | `WouldBlock` |
//! | the memory is used before the request completes | the caller must prevent it: posting is `unsafe` | the caller must prevent it |
//!
//! If a check of a first-level call refuses a request, the queue pair is unchanged, and no request of a batch is
//! posted. A full queue is found only by posting, so the first requests of a batch may already be posted
//! ([`PostError::posted`]). A failed completion ends a reliable connection.
//!
//! # Other crates
//!
//! Types of `rdma-mem` and `rdma-types` that occur in signatures here are re-exported. The C structs that `as_raw` and
//! `from_raw` use are in `rdma-sys`.
//!
//! # Features
//!
//! `serde` (off by default): serialisation of [`QueuePairEndpoint`], and of the types of
//! `rdma-mem`.

mod ah;
mod cq;
mod endpoint;
mod environment;
mod error;
mod gid_choice;
mod gid_network;
mod post;
pub mod prelude;
mod qp;
mod srq;
mod wr;

pub use ah::global_route_header::GlobalRouteHeader;
pub use ah::handle::AddressHandle;
pub use ah::vector::{AddressVector, GlobalRoute};
pub use cq::builder::CompletionQueueBuilder;
pub use cq::channel::CompletionChannel;
pub use cq::completion::{PollSlot, PolledCompletions, WorkCompletion, WorkResult};
pub use cq::poll_error::PollError;
pub use cq::queue::CompletionQueue;
pub use cq::work_error::{WorkError, WorkErrorClass, WorkErrorCode};
pub use cq::work_success::WorkSuccess;
pub use endpoint::bytes::EndpointError;
pub use endpoint::connect::{ConnectAttributes, HandshakeError};
pub use endpoint::pair::GidRule;
pub use endpoint::{EndpointGid, QueuePairEndpoint};
pub use error::Error;
pub use gid_choice::GidChoice;
pub use gid_network::{GidNetwork, ParseGidNetworkError};
pub use post::error::{PostError, PostErrorKind};
pub use qp::attributes::QueuePairAttributes;
pub use qp::builder::QueuePairBuilder;
pub use qp::capabilities::QueuePairCapabilities;
pub use qp::capabilities::inline::Inline;
pub use qp::data_order::DataOrder;
pub use qp::datagrams::DatagramSource;
pub use qp::modify::modification::QueuePairModification;
pub use qp::prepared::PreparedQueuePair;
pub use qp::queue_pair::QueuePair;
pub use srq::builder::SharedReceiveQueueBuilder;
pub use srq::queue::{SharedReceiveQueue, SharedReceiveQueueAttributes};
pub use wr::atomic::{AtomicResult, AtomicWorkRequest};
pub use wr::queued::QueuedRequest;
pub use wr::queued_receive::QueuedReceive;
pub use wr::read::ReadWorkRequest;
pub use wr::receive::ReceiveWorkRequest;
pub use wr::request::WorkRequest;
pub use wr::send::SendWorkRequest;
pub use wr::window::{BindWindow, LocalInvalidate, SendWithInvalidate};
pub use wr::write::WriteWorkRequest;

pub use rdma_mem::{
    AccessFlags, AsyncEventKind, AsyncEventSource, BindError, BindableRegion, Context, Errno,
    Error as MemoryError, GatherElement, GatherList, Gid, GidType, InlineElement, Lid, LinkLayer,
    MemoryWindow, ObjectId, Ownership, PreparedBind, ProtectionDomain, RemoteMemoryRegion, Rkey,
    ScatterElement, ScatterList, VerbError,
};
pub use rdma_types::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Mtu as MaximumTransferUnit,
    Psn as PacketSequenceNumber, QpState, QpType as QueuePairType, Qpn, WcOpcode, WcStatus,
};

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
