//! Queue pairs, completion queues, work requests and completions. This is the level below channels, and its posts are
//! `unsafe`.
//!
//! ```
//! # if cfg!(feature = "soft") {
//! use rdma::prelude::*;
//! use rdma::qp::{CompletionQueue, PollSlot};
//!
//! let context = open_device("soft0")?;
//! let (cq, pd) = (CompletionQueue::create(&context, 16)?, context.allocate_pd()?);
//! let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
//! let (here, there) = (prepare()?, prepare()?);
//! let endpoint = here.endpoint();
//! let mut here = here.handshake(there.endpoint())?;
//! let mut there = there.handshake(endpoint)?;
//! // SAFETY: the request has no memory.
//! unsafe { there.post_receive(ReceiveWorkRequest::only_immediate(), 1) }?;
//! // SAFETY: as above.
//! unsafe { here.post_send(SendWorkRequest::only_immediate(42), 2) }?;
//!
//! let (mut slots, mut completed) = ([PollSlot::default(); 2], 0);
//! while completed < 2 {
//!     for completion in cq.poll(&mut slots)? {
//!         completion.result()?;
//!         completed += 1;
//!     }
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use rdma_qp::prelude::{CreateCompletionQueue, CreateQueuePair};
pub use rdma_qp::{
    AddressHandle, AddressVector, AtomicResult, AtomicWorkRequest, BindWindow, CompletionChannel,
    CompletionQueue, CompletionQueueBuilder, ConnectAttributes, DataOrder, DatagramSource,
    EndpointError, EndpointGid, Error, GidChoice, GidNetwork, GidRule, GlobalRoute,
    GlobalRouteHeader, HandshakeError, Inline, LocalInvalidate, ParseGidNetworkError, PollError,
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
