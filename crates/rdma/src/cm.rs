//! Connections by address and port: of NICs through the kernel's rdma_cm, and of software devices without it.
//!
//! The passive end begins with [`Listener::bind`], the active end with [`EventChannel::resolve`].
//! ```
//! # if cfg!(feature = "soft") {
//! use std::time::Duration;
//! use rdma::cm::{EventChannel, Listener};
//! use rdma::prelude::*;
//! use rdma::qp::CompletionQueue;
//!
//! let context = open_device("soft0")?;
//! let (cq, pd) = (CompletionQueue::create(&context, 16)?, context.allocate_pd()?);
//! let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
//! let limit = Duration::from_secs(10);
//!
//! let channel = EventChannel::open(&context)?;
//! let listener = Listener::bind(&channel, "localhost:0")?;
//! let connecting = channel.resolve(listener.local_address())?.connect(prepare()?, b"")?;
//! let accepted = listener.incoming(limit)?.prepare(prepare()?)?.accept(b"")?;
//! let here = connecting.wait(limit)?.establish()?;
//! let there = accepted.wait(limit)?;
//! # drop((here, there));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use rdma_cm::{
    Accepted, Accepting, Awaited, BindOptions, Connecting, Connection, ConnectionId,
    ConnectionRequest, Counters, Disconnecting, End, Ended, Error, Event, EventChannel, EventKind,
    IdToken, LibrdmacmError, Listener, Phase, QueuePairError, Reason, Replied, Resolved, Resolving,
    Step, unmanaged,
};
