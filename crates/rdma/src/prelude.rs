//! The names that a program with channels needs, including the traits with which a protection domain creates channels
//! and queue pairs.
//!
//! ```
//! use rdma::prelude::*;
//! ```

pub use crate::channel::{
    Armed, Channel, ChannelListener, CloseReason, ConnectError, CreateChannel, ExchangeError,
    Finished, InFlight, Late, LeftReason, MultiChannel, PeerId, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, Prefix, PreparedChannel, Progress, Rejected,
    Scope, ScopeError, ScopedPendingWork, Server, ServerError, ServerEvent, TransportError, Wait,
    confirm, exchange, exchange_all,
};
pub use crate::device::{Context, list_devices, open_default_device, open_device};
pub use crate::memory::{
    AccessFlags, Buffer, BufferPool, GatherList, InlineElement, OwnedArray, OwnedRegion,
    ProtectionDomain, RemoteMemoryRegion, RemoteRef, RemoteSlice, ScatterList, SharedRegion,
    SliceMut, SliceRef,
};
pub use crate::qp::{
    AtomicWorkRequest, CreateCompletionQueue, CreateQueuePair, QueuePairEndpoint, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};
