//! RDMA connections by address and port, as with rdma_cm.
//!
//! An active end resolves `host:port` and requests a connection, which a listener accepts or rejects. The program
//! creates the queue pairs with `rdma-qp`. This crate exchanges their endpoints, and moves them to the states `INIT`,
//! `RTR` and `RTS`.
//!
//! | step | active end | passive end |
//! |---|---|---|
//! | open a device's channel | [`EventChannel::open`] | [`EventChannel::open`] |
//! | name the port | [`EventChannel::resolve`] gives [`Resolved`], and [`EventChannel::start_resolving`] a [`Resolving`] | [`Listener::bind`] |
//! | request | [`Resolved::connect`] gives [`Connecting`] | [`Listener::incoming`] gives [`ConnectionRequest`] |
//! | accept | | [`ConnectionRequest::prepare`] gives [`Accepting`], [`Accepting::accept`] gives [`Accepted`] |
//! | reject | | [`ConnectionRequest::reject`] |
//! | confirm | [`Connecting::wait`] gives [`Replied`], [`Replied::establish`] a [`Connection`] | [`Accepted::wait`] gives a [`Connection`] |
//! | disconnect | [`Connection::disconnect`] | [`Connection::wait`] |
//!
//! Each state is a type of its own, which the step to the next state consumes. So a program cannot use a connection
//! before it is established or after it has ended. Dropping a state ends the connection, notifies the peer, and never
//! waits for it.
//!
//! A program with one connection calls the `wait` methods. A program with many calls [`EventChannel::next`], and passes
//! each [`Event`] to the `advance` method of the state with the event's [`IdToken`]. A program with an event loop polls
//! the channel's [file](std::os::fd::AsFd).
//!
//! # Which ends can connect
//!
//! Devices of the system's libibverbs, such as a NIC or SoftRoCE, connect through the kernel's rdma_cm. It reaches every
//! program that uses rdma_cm on this host and on others. [`EventChannel::open`] loads the system's librdmacm for them
//! ([`rdma_sys::cm::librdmacm`]). The rest of this section is about software devices, which need neither.
//!
//! On one host, the two ends are in the same process, or in two processes of a user in one network namespace. They use
//! the same device: soft0 and softib0 are shared by such processes. A device of `rdma_soft::Builder` that is not shared
//! connects ends within its process. Each device has its own ports.
//!
//! The messages (MADs) of each such connection pass through a Unix socket. A listener binds an abstract name, which
//! consists of the device's GUID, the port space (TCP) and the port. So the kernel frees the port when the process
//! exits. It also closes the sockets of the process, so peers are notified at once. Sockets replace packets to QP 1
//! because all processes that share a device have the same address.
//!
//! A software device that listens (`RDMA_SOFT_LISTEN`, `rdma_soft::Builder::listen`) also connects to other hosts. The
//! peer on such a host uses this crate, or the kernel's rdma_cm on a SoftRoCE device. The messages are datagrams to QP
//! 1 of the peer's port. So only the process that listens at an address accepts connections there. If a process is
//! killed, it sends no message to another host. The peer's requests then fail after the timeout and retries of its
//! queue pair.
//!
//! Programs that manage their queue pairs themselves use the module [`unmanaged`], which also has datagram services
//! (SIDR), and multicast groups. `librdmacm.so.1` of `rdma-dropin-cm` offers this module to programs in C.
//!
//! # Untrusted peers
//!
//! With the kernel's rdma_cm, a peer chooses the IP addresses that it states, so they prove nothing. A listener has at most
//! 128 connections that are not established, and rejects further requests. A listener at `localhost` rejects requests
//! whose path leads to another host. Private data is untrusted input. The kernel checks the other parts of messages. For
//! software devices, the following applies.
//!
//! On one host, only processes of the same user are connected. Other hosts are not authenticated. Private data and all
//! other contents of messages are untrusted input. A request needs no queue pair before [`ConnectionRequest::prepare`].
//!
//! A listener has at most 128 connections of this host that are not established. If it has as many, it closes the
//! oldest socket on which no request has arrived within 100 ms. Each connection has its own socket, so its messages
//! reach no other connection.
//!
//! At each local address, a listener also has at most 128 connections of other hosts that are not established. Further
//! requests are dropped. So are messages whose source and communication IDs are those of no connection.
//! [`EventChannel::counters`] counts both.
//!
//! Sockets refuse files that a process attaches to its messages. Kernels before Linux 6.16 cannot refuse them. There, a
//! hostile process of any user can send a file that takes long to close. A thread that waits for events then closes this
//! file, so its wait can exceed its limit.
//!
//! # Examples
//!
//! A client and a server are two threads here. They share only the port.
//! ```
//! use std::time::Duration;
//!
//! use rdma_cm::{EventChannel, Listener};
//! use rdma_qp::{CompletionQueue, PollSlot, ReceiveWorkRequest, SendWorkRequest, prelude::*};
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! fn serve(channel: &EventChannel, listener: &Listener) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
//!     let cq = CompletionQueue::create(channel.context(), 16)?;
//!     let pd = channel.context().allocate_pd()?;
//!     let mut region = pd.allocate_region(64)?;
//!
//!     let request = listener.incoming(LIMIT)?;
//!     let queue_pair = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
//!     let accepting = request.prepare(queue_pair)?;
//!     let mut buffer = region.get_mut(0, 64).unwrap();
//!     let mut elements = [buffer.scatter_element()];
//!     // SAFETY: the region is not used before the receive has completed.
//!     unsafe { accepting.queue_pair().post_receive(ReceiveWorkRequest::new(&mut elements), 1) }?;
//!     let connection = accepting.accept(b"")?.wait(LIMIT)?;
//!     let mut slots = [PollSlot::default()];
//!     while cq.poll(&mut slots)?.next().is_none() {}
//!     connection.wait(LIMIT)?;
//!     Ok(region[..5].to_vec())
//! }
//!
//! fn send(address: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
//!     let cq = CompletionQueue::create(channel.context(), 16)?;
//!     let pd = channel.context().allocate_pd()?;
//!     let mut region = pd.allocate_region(5)?;
//!     region.copy_from_slice(b"hello");
//!
//!     let queue_pair = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
//!     let connecting = channel.resolve(address)?.connect(queue_pair, b"")?;
//!     let connection = connecting.wait(LIMIT)?.establish()?;
//!     let data = [region.get_ref(0, 5).unwrap().gather_element()];
//!     // SAFETY: the region is not used before the send has completed.
//!     unsafe { connection.queue_pair().post_send(SendWorkRequest::new(&data), 1) }?;
//!     let mut slots = [PollSlot::default()];
//!     while cq.poll(&mut slots)?.next().is_none() {}
//!     connection.disconnect(b"")?.wait(LIMIT)?;
//!     Ok(())
//! }
//!
//! rdma_soft::install();
//! let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
//! let listener = Listener::bind(&channel, "localhost:0")?;
//! let address = format!("localhost:{}", listener.local_address().port());
//! let client = std::thread::spawn(move || send(&address));
//! assert_eq!(serve(&channel, &listener)?, b"hello");
//! client.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Other crates
//!
//! Types of lower layers that occur in signatures here are re-exported.

mod active;
mod channel;
mod connection;
mod engine;
mod error;
mod event;
mod group;
mod happening;
mod listener;
mod options;
mod parameters;
mod step;
pub mod unmanaged;

pub use active::{Connecting, Replied, Resolved, Resolving};
pub use channel::EventChannel;
pub use connection::{Connection, ConnectionId, Disconnecting, Ended};
pub use error::{Awaited, End, Error, Phase};
pub use event::{Event, EventKind, IdToken};
pub use listener::{Accepted, Accepting, ConnectionRequest, Listener};
pub use options::BindOptions;
pub use step::Step;

pub use rdma_mem::{Context, Device, Error as MemoryError, LinkLayer, Mtu};
pub use rdma_proto::cm::Counters;
pub use rdma_proto::cm::wire::Reason;
pub use rdma_qp::{Error as QueuePairError, PreparedQueuePair, QueuePair};
pub use rdma_sys::cm::LibrdmacmError;

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
