//! Operations as futures that own their memory, on tokio. [`rdma_async::guide`] has all of it in order.
//!
//! ```
//! # if cfg!(feature = "soft") {
//! use rdma::aio::{ConnectionOptions, Driver};
//! use rdma::prelude::*;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let context = open_device("soft0")?;
//! let pd = context.allocate_pd()?;
//! let driver = Driver::spawn(&context)?;
//! let options = ConnectionOptions::new(&pd);
//! let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
//! // In a real program, the client is another process.
//! let connect = driver.connect(listener.local_addr(), options);
//! let (client, server) = tokio::join!(connect, listener.accept());
//! let (client, server) = (client?.0, server?);
//!
//! let pool = BufferPool::new(&pd);
//! let receive = server.receive(pool.allocate(64)?).post().await?;
//! client.send(pool.allocate(5)?).await?;
//! assert_eq!(receive.await?.length, 5);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! # })?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

pub use rdma_async::{
    Atomic, BufferExt, BufferSlice, Connection, ConnectionOptions, Descriptor, Driver, EndedLease,
    Events, Failed, Incoming, Kind, Lease, LeaseDenial, LeaseEnd, LeaseError, LeaseLimits,
    LendError, Listener, ManualDriver, Op, Pool, PoolError, Post, Posted, PreparedConnection, Read,
    Receive, ReceiveImmediate, ReceiveRing, Received, Region, RemoteRegion, ReserveError, Reserved,
    ReservedEnd, RingMessage, Run, SendOut, SharedBuffer, Source, Target, Write,
};
#[cfg(feature = "serde")]
pub use rdma_async::{ValueError, ValueExt};
