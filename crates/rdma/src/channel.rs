//! Channels, which are connected endpoints, and the exchange of endpoints between the two ends. The operations of a
//! channel keep their memory alive and always end. [`rdma_channel::guide`] explains channels step by step.
//!
//! ```
//! # if cfg!(feature = "soft") {
//! use rdma::prelude::*;
//!
//! let pd = open_device("soft0")?.allocate_pd()?;
//! let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
//! let address = listener.local_addr();
//! std::thread::scope(|threads| {
//!     // In a real program, this is another process.
//!     let client = threads.spawn(|| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!         let mut channel = Channel::connect(address, &pd)?;
//!         Ok(channel.send_from(&pd.allocate_region(5)?)?)
//!     });
//!     let mut channel = listener.accept()?;
//!     let mut buffer = pd.allocate_region(64)?;
//!     assert_eq!(channel.receive_into(&mut buffer)?, 5);
//!     client.join().unwrap()
//! })?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

pub use rdma_channel::message;
pub use rdma_channel::prelude::CreateChannel;
pub use rdma_channel::{
    Armed, BatchRequest, Channel, ChannelBuilder, ChannelListener, CloseReason, ConnectError,
    ConnectionCounters, ExchangeError, FailedWork, Finished, InFlight, Incoming, Late, LeftReason,
    MultiChannel, MultiChannelBuilder, Operation, OperationError, PeerAddress,
    PeerAtomicWorkRequest, PeerId, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest, PendingWord, PendingWork,
    Pipes, PollingScope, Prefix, PreparedChannel, PreparedMultiChannel, PreparedPeer, Progress,
    ReceiveRing, Refused, RefusedWork, Rejected, Rendezvous, RendezvousBuilder, Rent, RentMut,
    RingMessage, Scope, ScopeError, ScopeResult, ScopedPeer, ScopedPendingWork, Server,
    ServerBuilder, ServerError, ServerEvent, TimedStream, ToPeer, TransportError, TransportResult,
    Wait, Waitable, Waker, Within, WithoutPd, WorkId, confirm, exchange, exchange_all,
};
