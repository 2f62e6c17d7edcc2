//! Connected RDMA endpoints whose operations keep their memory alive and always end.
//!
//! Types of `rdma-qp` and `rdma-mem` that signatures here name are re-exported; what makes
//! contexts, protection domains and regions is in `rdma-mem`. The crate `rdma` has all of it as one
//! dependency.

mod channel;
mod deadline;
mod exchange;
mod ledger;
mod lend;
mod limits;
mod multi_channel;
mod operation;
pub mod prelude;
mod rendezvous;
mod request;
mod scope;
mod server;
mod transport_error;

pub use channel::Channel;
pub use channel::builder::{ChannelBuilder, MultiChannelBuilder, WithoutPd};
pub use channel::prepared::PreparedChannel;
pub use channel::slices::Within;
pub use channel::waiting::{Armed, Waitable};
pub use deadline::Wait;
pub use exchange::{ExchangeError, Pipes, TimedStream, confirm, exchange, exchange_all};
pub use multi_channel::MultiChannel;
pub use multi_channel::prepared::PreparedMultiChannel;
pub use multi_channel::remote_memory_region::PeerRemoteMemoryRegion;
pub use multi_channel::to_peer::{
    PeerAtomicWorkRequest, PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest,
    PeerWriteWorkRequest, ToPeer,
};
pub use operation::Operation;
pub use rendezvous::builder::{Rendezvous, RendezvousBuilder};
pub use rendezvous::error::ConnectError;
pub use rendezvous::incoming::Incoming;
pub use rendezvous::listener::ChannelListener;
pub use request::Request;
pub use scope::batch::RefusedBatch;
pub use scope::in_flight::InFlight;
pub use scope::outcome::{Finished, Late, Progress, Refused};
pub use scope::peer::ScopedPeer;
pub use scope::pending_word::PendingWord;
pub use scope::pending_work::{PendingWork, ScopedPendingWork};
pub use scope::rent::{Prefix, Rent, RentMut};
pub use scope::{Scope, ScopeError};
pub use server::Server;
pub use server::builder::ServerBuilder;
pub use server::event::{LeftReason, PeerId, ServerError, ServerEvent};
pub use server::waker::Waker;
pub use transport_error::context::{FailedWork, PeerAddress, RefusedWork};
pub use transport_error::{CloseReason, OperationError, Rejected, TransportError, WorkId};

pub use rdma_mem::{
    AccessFlags, Buffer, BufferPool, Error as MemoryError, GatherElement, GatherList,
    InlineElement, ProtectionDomain, Recovery, RemoteMemoryRegion, ScatterElement,
    ScatterGatherElementError, ScatterList, SharedElement, SliceMut, SliceRef,
};
pub use rdma_qp::{
    AckTimeout, AtomicResult, AtomicWorkRequest, ConnectAttributes, EndpointError, Error,
    MaxAckRetries, MaxRnrRetries, MaximumTransferUnit, MinRnrTimer, PacketSequenceNumber,
    PollError, PostError, QpState, Qpn, QueuePairAttributes, QueuePairEndpoint, QueuePairType,
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkError, WorkSuccess, WriteWorkRequest,
};
