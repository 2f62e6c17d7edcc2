//! Channels: connected endpoints whose operations keep their memory and always end, and how two ends
//! give each other their endpoints.

pub use rdma_channel::prelude::CreateChannel;
pub use rdma_channel::{
    Armed, Channel, ChannelBuilder, ChannelListener, CloseReason, ConnectError, ExchangeError,
    FailedWork, Finished, InFlight, Incoming, Late, LeftReason, MultiChannel, MultiChannelBuilder,
    Operation, OperationError, PeerAddress, PeerAtomicWorkRequest, PeerId, PeerReadWorkRequest,
    PeerReceiveWorkRequest, PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest,
    PendingWord, PendingWork, Pipes, Prefix, PreparedChannel, PreparedMultiChannel, Progress,
    Refused, RefusedBatch, RefusedWork, Rejected, Rendezvous, RendezvousBuilder, Rent, RentMut,
    Request, Scope, ScopeError, ScopedPeer, ScopedPendingWork, Server, ServerBuilder, ServerError,
    ServerEvent, TimedStream, ToPeer, TransportError, Wait, Waitable, Waker, Within, WithoutPd,
    WorkId, confirm, exchange, exchange_all,
};
