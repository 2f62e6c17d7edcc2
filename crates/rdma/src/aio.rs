//! Operations as futures that own their memory, on tokio. [`rdma_async::guide`] explains them step by step.
//!
//! An example with two processes. The server answers one message:
//!
//! ```no_run
//! use rdma::aio::BufferExt as _;
//!
//! # async fn server() -> Result<(), Box<dyn std::error::Error>> {
//! let (endpoint, listener) = rdma::aio::listen("0.0.0.0:18515").await?;
//! let connection = listener.accept().await?;
//! let question = connection.receive(endpoint.allocate(64).await?).await?;
//! connection.send(question.memory.slice(0..question.length)).await?;
//! # Ok(()) }
//! ```
//!
//! The client posts the receive for the answer before it sends its question:
//!
//! ```no_run
//! # async fn client() -> Result<(), Box<dyn std::error::Error>> {
//! let (endpoint, connection) = rdma::aio::connect("server:18515").await?;
//! let answer = connection.receive(endpoint.allocate(64).await?).post().await?;
//! connection.send(endpoint.buffer(b"hello").await?).await?;
//! println!("{} bytes", answer.await?.length);
//! # Ok(()) }
//! ```
//!
//! Both use the device named by the environment variable `RDMA_DEVICE`, or else the first NIC with an active port, or
//! else a software device. To use another device, call [`Endpoint::new`].

use rdma_channel::ConnectError;
use tokio::net::ToSocketAddrs;

pub use rdma_async::message;
pub use rdma_async::{
    Atomic, BufferExt, BufferSlice, Connection, ConnectionCounters, ConnectionOptions, Descriptor,
    Driver, EndedLease, Endpoint, Events, Failed, Incoming, Kind, Lease, LeaseDenial, LeaseEnd,
    LeaseError, LeaseLimits, LendError, Listener, ManualDriver, Op, Pool, PoolError, Post, Posted,
    PreparedConnection, Read, Receive, ReceiveImmediate, ReceiveRing, Received, ReconnectPolicy,
    Region, RemoteRegion, ReserveError, Reserved, ReservedEnd, RingMessage, Run, SendOut,
    SharedBuffer, Source, Target, Write,
};
#[cfg(feature = "cm")]
pub use rdma_async::{CmIncoming, CmListener};
#[cfg(feature = "serde")]
pub use rdma_async::{ValueError, ValueExt};

/// Creates an [`Endpoint`] on the [default device](crate::device::open_default_device).
///
/// # Errors
/// Same errors as [`Endpoint::new`], and [`ConnectError::Verbs`] with an error of
/// [`open_default_device`](crate::device::open_default_device).
///
/// # Panics
/// Panics outside of a tokio runtime with I/O.
pub fn open_endpoint() -> Result<Endpoint, ConnectError> {
    Endpoint::new(&crate::device::open_default_device()?)
}

/// Creates an [`Endpoint`] on the [default device](crate::device::open_default_device) and connects it to a listener.
///
/// # Errors
/// Same errors as [`open_endpoint`] and [`Endpoint::connect`].
///
/// # Panics
/// Panics outside of a tokio runtime with I/O and time.
///
/// # Examples
/// See [the module](self).
pub async fn connect(addr: impl ToSocketAddrs) -> Result<(Endpoint, Connection), ConnectError> {
    let endpoint = open_endpoint()?;
    let connection = endpoint.connect(addr).await?;
    Ok((endpoint, connection))
}

/// Creates an [`Endpoint`] on the [default device](crate::device::open_default_device) and listens on it.
///
/// # Errors
/// Same errors as [`open_endpoint`] and [`Endpoint::listen`].
///
/// # Panics
/// Panics outside of a tokio runtime with I/O and time.
///
/// # Examples
/// See [the module](self).
pub async fn listen(addr: impl ToSocketAddrs) -> Result<(Endpoint, Listener), ConnectError> {
    let endpoint = open_endpoint()?;
    let listener = endpoint.listen(addr).await?;
    Ok((endpoint, listener))
}
