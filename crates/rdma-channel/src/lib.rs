//! Connected RDMA endpoints whose operations keep their memory alive and always end.

mod batch;
mod blocking;
mod builder;
mod channel;
mod core;
mod ending;
mod exchange;
mod in_flight;
mod lane;
mod limits;
mod multi_channel;
mod operation;
mod outcome;
mod patience;
mod pending_work;
pub mod prelude;
mod prepared_channel;
mod rent;
mod rent_batch;
mod scope;
mod slot;
mod table;
mod ticket;
mod transport_error;
mod unpolled;

pub use batch::Request;
pub use builder::{ChannelBuilder, WithoutPd};
pub use channel::Channel;
pub use exchange::{ExchangeError, Pipes, TimedStream, confirm, exchange, exchange_all};
pub use in_flight::InFlight;
pub use multi_channel::{
    MultiChannel, MultiChannelBuilder, PeerAtomicWorkRequest, PeerReadWorkRequest,
    PeerReceiveWorkRequest, PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest,
    PreparedMultiChannel,
};
pub use operation::Operation;
pub use outcome::{Finished, Late, Progress, Refused};
pub use pending_work::{PendingWork, ScopedPendingWork};
pub use prepared_channel::PreparedChannel;
pub use rent::{Prefix, Rent, RentMut};
pub use rent_batch::RefusedBatch;
pub use scope::{Scope, ScopeError};
pub use transport_error::{CloseReason, OperationError, TransportError, WorkId};

pub use rdma_qp::{QueuePairEndpoint, WorkSuccess};
