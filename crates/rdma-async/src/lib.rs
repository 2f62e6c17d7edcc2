//! RDMA operations as futures that own their memory.
//!
//! **Incomplete:** messages and streams are not here yet.
//!
//! # Operations
//!
//! A [`Connection`] has methods that make operations: [`send`](Connection::send), [`receive`](Connection::receive),
//! [`write`](Connection::write), [`read`](Connection::read), atomic operations. Each takes its memory by value, a
//! [`Buffer`] of a pool, a [part](BufferSlice) of one, or, to send and write, a
//! [shared](SharedBuffer) one, and gives it back with the outcome; [`Failed`] has it when the operation fails. An
//! operation ([`Op`]) is lazy: nothing is posted before it is awaited, or [posted](Op::post). When there are more
//! operations than the queue holds, they wait for a free slot: each slot that becomes free wakes the one that has waited
//! longest, and a newcomer may still be faster. A slot is free when the outcome of its operation was taken, or nobody waits for
//! it and it has completed.
//!
//! # Who polls
//!
//! Who awaits an operation polls the completion queue itself, so that what is done soon costs no switch of tasks. The
//! [`Driver`] only sleeps on the completion channel, and wakes tasks; a program with a loop of its own
//! [drives by hand](Driver::manual). The connections of a driver share completion queues; each has one lock, under which it
//! is polled and its queue pairs are posted to.
//!
//! # What is dropped
//!
//! Memory is never given back while the device may use it, whatever is dropped or forgotten, and in what order:
//!
//! | dropped | what becomes of it |
//! |---|---|
//! | an [`Op`], or a [`Post`] that is not ready | nothing was posted; its memory is given back at once |
//! | a [`Posted`] send, write, read or atomic operation | it goes on; its memory is given back when it has completed, and its outcome is lost |
//! | a [`Posted`] receive | it stands; a message that comes is kept with its memory: [`Connection::take_unclaimed`] |
//! | an operation with a [limit](Op::within), before and after its time | the same |
//! | a [`Lease`] | the lease goes on to its end, and the memory is freed |
//! | the last [`RemoteRegion`] of a lease, and its operations | the peer has its memory back |
//! | a future that was forgotten ([`std::mem::forget`]) | it keeps its slot and its memory until the connection ends; one that waits for a slot may keep a wake-up, which the next completion makes up for; one of [`reconnect`](Connection::reconnect) or [`connect_additional`](Connection::connect_additional) keeps its number |
//! | the last [`Connection`], and [`RemoteRegion`] of it | the queue pair is destroyed, and then all memory that was with it is given back |
//! | the last [`Driver`] and [`Connection`], the driver's task, the runtime | all queue pairs of the driver are destroyed; operations fail with `Closed`, with their memory |
//!
//! # Pools
//!
//! A [`Pool`] has the buffers. [`Pool::allocate`] takes one of what is registered, and registers more on another thread when
//! there is none, so that no task waits for the provider but those that need it. A buffer keeps its region, also when the
//! pool is gone.
//!
//! # Memory for peers
//!
//! [`Region::reserve`] opens memory to peers until a function has ended or a time is over, and then it is exclusive again.
//! [`Region::reserve_for`] does so for the peer of one connection, faster where the device has memory windows.
//! [`Connection::lend`] lends memory to the peer for a time, and [`Connection::borrow`] asks the peer for some.
//!
//! # Forking
//!
//! A forked child has none of its parent's connections. It must not use them; dropping connections, drivers and
//! listeners does nothing, and an operation that waits for a slot, an [`Incoming`],
//! [`Events`], or another future of this crate must not be dropped there.

// Models have no network, and nobody to use what only that uses.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod buffer;
mod connection;
#[cfg(not(loom))]
mod control;
mod driver;
#[doc = include_str!("guide.md")]
pub mod guide {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-async-rdma.md")]
mod from_async_rdma {}
#[cfg(not(loom))]
mod lease;
mod ledger;
mod link;
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
#[cfg(feature = "serde")]
pub use buffer::value::{ValueError, ValueExt};
pub use buffer::view::{BufferExt, BufferSlice};
pub use connection::Connection;
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
pub use rdma_mem::{
    AsyncEvent, Buffer, Context, ProtectionDomain, RemoteMemoryRegion, SliceMut, SliceRef,
};
pub use rdma_qp::{ConnectAttributes, Error, Qpn, QueuePairBuilder, QueuePairEndpoint};
