//! RDMA operations as futures that own their memory.
//!
//! # Operations
//!
//! The methods of a [`Connection`] create operations: [`send`](Connection::send), [`receive`](Connection::receive),
//! [`write`](Connection::write), [`read`](Connection::read), and atomic operations. Each takes its memory by value: a
//! [`Buffer`] from a pool, a [part](BufferSlice) of one, or, for sends and writes, a [shared](SharedBuffer) buffer. The
//! outcome returns the memory; if the operation fails, the memory is in [`Failed`].
//!
//! An operation ([`Op`]) is lazy: nothing is posted until it is awaited or [posted](Op::post). If the queue is full, an
//! operation waits for a free slot. Each slot that becomes free wakes the operation that has waited longest, but a new
//! operation may take the slot first. A slot becomes free when the outcome of its operation is taken. If the future was
//! dropped, the slot becomes free when the request completes.
//!
//! # Polling
//!
//! A task that awaits an operation polls the completion queue itself, so an operation that completes soon causes no
//! task switch. The [`Driver`] only sleeps on the completion channel and wakes tasks. A program with its own event loop
//! [polls the driver itself](Driver::manual). The connections of a driver share completion queues. Each queue has one
//! lock, which covers polling the queue and posting to its queue pairs.
//!
//! # Dropping
//!
//! Memory is never released while the device may use it, no matter what is dropped or forgotten, or in which order:
//!
//! | dropped | effect |
//! |---|---|
//! | an [`Op`], or a [`Post`] that is not ready | nothing was posted; its memory is released at once |
//! | a [`Posted`] send, write, read or atomic operation | it continues; its memory is released when it completes, and its outcome is lost |
//! | a [`Posted`] receive | it stays posted; a message that arrives is kept, with its memory, for [`Connection::take_unclaimed`] |
//! | an operation with a [limit](Op::within), before or after the limit expires | the same as without a limit |
//! | a [`Lease`] | the lease continues until it ends, and then the memory is freed |
//! | the last [`RemoteRegion`] of a lease, and its operations | the memory returns to the peer |
//! | a future that was forgotten ([`std::mem::forget`]) | it keeps its slot and its memory until the connection ends; if it waits for a slot, it may swallow a wake-up, which the next completion makes up for; if it belongs to [`reconnect`](Connection::reconnect) or [`connect_additional`](Connection::connect_additional), it keeps its number |
//! | the last [`Connection`], and its last [`RemoteRegion`] | the queue pair is destroyed, and then all memory of its requests is released |
//! | the last [`Driver`] and [`Connection`], the driver's task, the runtime | all queue pairs of the driver are destroyed; operations fail with `Closed` and return their memory |
//!
//! # Pools
//!
//! A [`Pool`] provides buffers. [`Pool::allocate`] takes a buffer from registered memory. If none is free, the pool
//! registers more on another thread, so only the tasks that need the new memory wait for the provider. A buffer keeps
//! its region registered, even after the pool is dropped.
//!
//! # Memory for peers
//!
//! [`Region::reserve`] opens memory to peers until a function returns or a time limit expires; then the memory is
//! exclusive again. [`Region::reserve_for`] does the same for the peer of one connection, and is faster if the device
//! has memory windows. [`Connection::lend`] lends memory to the peer for a limited time, and [`Connection::borrow`]
//! borrows memory from the peer.
//!
//! # Simulation
//!
//! A test can run tasks on a simulated network of `rdma-soft`, whose clock is then also tokio's (`Network::block_on`,
//! feature `simulation`):
//!
//! ```
//! use std::time::Duration;
//!
//! use rdma_async::message::{Messages, Options};
//! use rdma_async::{Driver, Pool};
//! use rdma_mem::open_device;
//! use rdma_qp::prelude::*;
//! use rdma_soft::{Builder, LinkModel, Network};
//!
//! let network = Network::simulated(7);
//! network.set_all_links(LinkModel::new().latency(Duration::from_millis(20)).loss(0.1));
//! let names = ["moon", "earth"];
//! let devices = names.map(|name| Builder::new(name).network(&network).install().unwrap());
//! network.block_on(async {
//!     let options = Options::new();
//!     let prepare = |name| {
//!         let pd = open_device(name)?.allocate_pd()?;
//!         let prepared = Driver::spawn(pd.context())?.prepare(options.fit(pd.create_qp()))?;
//!         Ok::<_, Box<dyn std::error::Error>>((prepared, Pool::new(&pd)))
//!     };
//!     let [(moon, moons), (earth, earths)] = [prepare(names[0])?, prepare(names[1])?];
//!     let (at_moon, at_earth) = (moon.endpoint(), earth.endpoint());
//!     let moon = Messages::new(moon.handshake(at_earth)?, &moons, options).await?;
//!     let earth = Messages::new(earth.handshake(at_moon)?, &earths, options).await?;
//!     moon.send(b"one small step").await?;
//!     assert_eq!(*earth.receive().await?.expect("a message"), *b"one small step");
//!
//!     // The cable is cut. The message fails after the retries, which take only virtual time.
//!     let cut_at = network.now();
//!     network.set_link(&devices[0], &devices[1], LinkModel::cut())?;
//!     moon.send(b"one giant leap").await.unwrap_err();
//!     assert!(network.now() - cut_at > Duration::from_millis(300));
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Forking
//!
//! A forked child does not own its parent's connections, and must not use them. Dropping connections, drivers and
//! listeners has no effect in the child. The child must not drop an operation that waits for a slot, an [`Incoming`],
//! [`Events`], or any other future of this crate.

// Loom models have no network, so the code for the network is unused there.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod buffer;
mod connection;
#[cfg(not(loom))]
mod control;
mod driver;
#[doc = include_str!("guide.md")]
pub mod guide {}
#[cfg(not(loom))]
mod lease;
mod ledger;
mod link;
#[cfg(not(loom))]
pub mod message;
#[cfg(test)]
mod mock;
#[cfg(all(test, loom))]
mod models;
mod operation;
pub mod prelude;
mod prepared;
mod region;
mod sync;

pub use buffer::held::{Source, Target};
#[cfg(not(loom))]
pub use buffer::pool::{Pool, PoolError};
pub use buffer::shared::SharedBuffer;
pub use buffer::view::{BufferExt, BufferSlice};
pub use connection::Connection;
#[cfg(all(not(loom), feature = "cm"))]
pub use control::cm::CmListener;
#[cfg(all(not(loom), feature = "cm"))]
pub use control::cm::incoming::CmIncoming;
#[cfg(not(loom))]
pub use control::endpoint::Endpoint;
#[cfg(not(loom))]
pub use control::incoming::Incoming;
#[cfg(not(loom))]
pub use control::listener::Listener;
#[cfg(not(loom))]
pub use control::options::ConnectionOptions;
#[cfg(not(loom))]
pub use control::reconnect::ReconnectPolicy;
pub use driver::Driver;
pub use driver::events::Events;
pub use driver::manual::ManualDriver;
#[cfg(not(loom))]
pub use lease::error::{LeaseDenial, LeaseError, LendError};
#[cfg(not(loom))]
pub use lease::limits::LeaseLimits;
#[cfg(not(loom))]
pub use lease::own::{EndedLease, Lease};
#[cfg(not(loom))]
pub use lease::remote::RemoteRegion;
pub use operation::Op;
pub use operation::failed::Failed;
pub use operation::kinds::{
    Atomic, Kind, Read, Receive, ReceiveImmediate, Received, SendOut, Write,
};
pub use operation::post::Post;
pub use operation::posted::Posted;
pub use operation::ring::{ReceiveRing, RingMessage};
pub use operation::run::Run;
pub use prepared::PreparedConnection;
pub use region::descriptor::Descriptor;
pub use region::memory::Region;
pub use region::reserve::{ReserveError, Reserved, ReservedEnd};

pub use rdma_connect::{
    CloseReason, ConnectError, ConnectionCounters, LeaseEnd, PeerAddress, TransportError,
};
#[cfg(feature = "serde")]
pub use rdma_connect::{ValueError, ValueExt};
pub use rdma_mem::{
    AsyncEvent, Buffer, Context, ProtectionDomain, RemoteMemoryRegion, SliceMut, SliceRef,
};
pub use rdma_qp::{ConnectAttributes, Error, Qpn, QueuePairBuilder, QueuePairEndpoint};

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
