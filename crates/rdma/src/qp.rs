//! Queue pairs, completion queues, work requests and completions: the level below channels, whose
//! posts are `unsafe`.

pub use rdma_qp::prelude::{CreateCompletionQueue, CreateQueuePair};
pub use rdma_qp::{
    AddressHandle, AddressVector, AtomicResult, AtomicWorkRequest, BindWindow, CompletionChannel,
    CompletionQueue, CompletionQueueBuilder, ConnectAttributes, DatagramSource, EndpointError,
    EndpointGid, Error, GlobalRoute, GlobalRouteHeader, HandshakeError, LocalInvalidate, PollError,
    PollSlot, PolledCompletions, PostError, PostErrorKind, PreparedQueuePair, QueuePair,
    QueuePairAttributes, QueuePairBuilder, QueuePairCapabilities, QueuePairEndpoint,
    QueuePairModification, QueuePairType, QueuedReceive, QueuedRequest, ReadWorkRequest,
    ReceiveWorkRequest, SendWithInvalidate, SendWorkRequest, SharedReceiveQueue,
    SharedReceiveQueueAttributes, SharedReceiveQueueBuilder, WorkCompletion, WorkError,
    WorkErrorClass, WorkErrorCode, WorkRequest, WorkResult, WorkSuccess, WriteWorkRequest,
};
pub use rdma_types::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber, Psn, QpAttributes,
    QpState, QpTransition, QpType, Qpn, WcOpcode, WcStatus,
};
