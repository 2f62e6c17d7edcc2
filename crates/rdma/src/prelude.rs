//! What a program with channels names, the methods that upper layers add to lower types among it.
//!
//! ```
//! use rdma::prelude::*;
//! ```

pub use crate::channel::{
    Channel, CreateChannel, InFlight, MultiChannel, Progress, ScopeError, TransportError, confirm,
    exchange,
};
pub use crate::device::{Context, list_devices, open_device};
pub use crate::memory::{
    AccessFlags, BufferPool, GatherList, InlineElement, OwnedArray, OwnedRegion, ProtectionDomain,
    RemoteMemoryRegion, ScatterList, SharedRegion, SliceMut, SliceRef,
};
pub use crate::qp::{
    AtomicWorkRequest, CreateCompletionQueue, CreateQueuePair, QueuePairEndpoint, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};
