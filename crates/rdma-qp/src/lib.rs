//! RDMA completion queues, queue pairs, work requests and completions.
//!
//! | step | here |
//! |---|---|
//! | make a completion queue | [`CompletionQueue::create`] |
//! | make a queue pair | `pd.create_qp()` of the [`prelude`], [`QueuePairBuilder`] |
//! | tell the peer | [`PreparedQueuePair::endpoint`], [`QueuePairEndpoint::to_bytes`] |
//! | connect | [`PreparedQueuePair::handshake`] |
//! | post requests | [`QueuePair::post_send`], `post_receive`, `post_write`, `post_read`, in batches [`QueuePair::post_batch`] |
//! | take completions | [`CompletionQueue::poll`] |
//! | sleep until there are some | [`CompletionQueue::req_notify`], [`CompletionChannel::get_event`] |
//! | end a connection | [`QueuePair::drain`], [`QueuePair::to_error`] |
//!
//! # The raw level
//!
//! Posting is `unsafe`: after it returns, the device uses the memory of the request until the request
//! has completed, and nothing in this crate keeps anybody else from using it. What the crate does keep:
//! objects are destroyed in the right order, elements are within their regions, requests within the
//! remote memory that they name, and of a completion nothing can be read that is not defined.
//!
//! Posting and polling do what the same calls in C do: no allocation, no lock, no counting beside it.
//!
//! # Features
//!
//! `serde` (off by default): [`QueuePairEndpoint`] can be serialised, and what rdma-mem can.

mod builder;
mod capabilities;
mod completion;
mod completion_channel;
mod completion_queue;
mod connect_attributes;
mod create;
mod drain;
mod endpoint;
mod endpoint_bytes;
#[cfg(feature = "serde")]
mod endpoint_serde;
mod error;
mod modification;
mod modify;
mod object;
mod path;
mod post;
mod post_error;
pub mod prelude;
mod prepared_queue_pair;
mod queue_pair;
mod queue_pair_attributes;
mod queued_request;
mod transition;
mod work_error;
mod work_request;
mod work_success;

pub use builder::QueuePairBuilder;
pub use capabilities::QueuePairCapabilities;
pub use completion::{PollSlot, PolledCompletions, WorkCompletion, WorkResult};
pub use completion_channel::CompletionChannel;
pub use completion_queue::{CompletionQueue, PollError};
pub use connect_attributes::{ConnectAttributes, GlobalRoute, HandshakeError};
pub use endpoint::{EndpointGid, QueuePairEndpoint};
pub use endpoint_bytes::EndpointError;
pub use error::Error;
pub use modification::QueuePairModification;
pub use post_error::{PostError, PostErrorKind};
pub use prepared_queue_pair::PreparedQueuePair;
pub use queue_pair::QueuePair;
pub use queue_pair_attributes::QueuePairAttributes;
pub use queued_request::{QueuedReceive, QueuedRequest};
pub use work_error::{WorkError, WorkErrorClass, WorkErrorCode};
pub use work_request::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
pub use work_success::WorkSuccess;

pub use rdma_types::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Mtu as MaximumTransferUnit,
    Psn as PacketSequenceNumber, QpState, Qpn, WcOpcode, WcStatus,
};
