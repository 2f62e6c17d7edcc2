//! RDMA in one dependency: devices, memory, queue pairs, channels, and software devices.
//!
//! A program that uses this crate runs on RDMA NICs, on the kernel's SoftRoCE, and on software devices without changes
//! to its source. Software devices need neither hardware nor privileges.
//!
#![cfg_attr(feature = "soft", doc = "```")]
#![cfg_attr(not(feature = "soft"), doc = "```no_run")]
//! use rdma::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let pd = open_device("soft0")?.allocate_pd()?;
//!
//!     // Two ends in one process; two processes use `Channel::connect` and `listen`.
//!     let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
//!     let endpoint = here.endpoint();
//!     let mut here = here.handshake(there.endpoint())?;
//!     let _there = there.handshake(endpoint)?;
//!
//!     let access = AccessFlags::new().with_local_write().with_remote_write();
//!     let board = pd.allocate_shared_region(4096, access)?; // memory that the peer may write
//!     let mut source = pd.allocate_region(5)?;
//!     source.copy_from_slice(b"hello");
//!     let hello = GatherList::from([source.as_slice()]);
//!     here.write(WriteWorkRequest::from_list(&hello, board.remote()))?;
//!
//!     let mut text = [0; 5];
//!     board.read(0, &mut text)?;
//!     assert_eq!(&text, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! # Modules
//!
//! | module | contents | crate |
//! |---|---|---|
//! | [`device`] | devices, contexts, ports, addresses, asynchronous events | `rdma-mem` |
//! | [`memory`] | protection domains, regions, elements, a peer's memory, windows | `rdma-mem` |
//! | [`qp`] | queue pairs, completion queues, work requests, completions | `rdma-qp` |
//! | [`channel`] | connected endpoints whose operations keep their memory alive and always end | `rdma-channel` |
#![cfg_attr(
    feature = "cm",
    doc = "| [`cm`] | connections by address and port, as with rdma_cm | `rdma-cm` |"
)]
#![cfg_attr(
    feature = "soft",
    doc = "| [`soft`] | the software devices, and devices that a program configures itself | `rdma-soft` |"
)]
#![cfg_attr(
    feature = "group",
    doc = "| [`group`] | ranks, barriers and collectives, under any launcher | `rdma-group` |"
)]
#![cfg_attr(
    feature = "async",
    doc = "| [`aio`] | operations as futures, on tokio | `rdma-async` |"
)]
//! | [`prelude`] | the names that a program with channels uses | |
//!
//! Each item is re-exported from the crate in the last column, which can also be used alone. A few functions belong to
//! this crate itself: see [`device::open_device`] and [`device::list_devices`]. Raw bindings of libibverbs are in
//! `rdma-sys`.
//!
//! # Where to begin
//!
//! | to | use |
//! |---|---|
//! | connect two processes | [`Channel::connect`], and [`listen`] of [`create_channel`] |
//! | run one operation at a time | [`Channel::send_from`], [`receive_into`], [`write_from`], [`read_into`], [`fetch_add`] |
//! | limit how long one call takes | [`Channel::within`] |
//! | keep many operations outstanding | [`Channel::scope`], [`Channel::scope_deadline`] |
//! | choose how soon a silent machine counts as gone | [`watch`]; waits then fail with [`PeerGone`] |
//! | serve clients that come and go | [`Server`] |
//! | choose what to do after an error | [`Recovery`], returned by `recovery()` of each error |
//!
//! [`Channel::connect`]: channel::Channel::connect
//! [`listen`]: channel::ChannelBuilder::listen
//! [`create_channel`]: channel::CreateChannel::create_channel
//! [`Channel::send_from`]: channel::Channel::send_from
//! [`receive_into`]: channel::Channel::receive_into
//! [`write_from`]: channel::Channel::write_from
//! [`read_into`]: channel::Channel::read_into
//! [`fetch_add`]: channel::Channel::fetch_add
//! [`Channel::within`]: channel::Channel::within
//! [`Channel::scope`]: channel::Channel::scope
//! [`Channel::scope_deadline`]: channel::Channel::scope_deadline
//! [`watch`]: channel::ChannelBuilder::watch
//! [`PeerGone`]: channel::TransportError::PeerGone
//! [`Server`]: channel::Server
//! [`Recovery`]: device::Recovery
//!
//! # Features
//!
//! - `async`: operations as futures that own their memory, on tokio (`rdma-async`, as the module `aio`).
//! - `cm`: connections by address and port (`rdma-cm`, as the module `cm`), also of channels and drivers, by
//!   `connect_cm`.
//! - `group`: ranks, barriers and collectives (`rdma-group`, as the module `group`). With `async`, it adds the module
//!   `rdma::group::aio`.
//! - `simulation`: tasks of tokio in the time of a simulated network (`soft::Network::block_on`). For tests only,
//!   because it enables tokio's feature `test-util`.
//! - `soft` (on by default): the software devices. Without this feature, `rdma-soft` is not built.
//! - `serde`: serialisation of endpoints, remote regions and the numeric types of RDMA. With `group`, it adds the module
//!   `rdma::group::network`.

#![forbid(unsafe_code)]

#[cfg(feature = "async")]
pub mod aio;
pub mod channel;
#[cfg(feature = "cm")]
pub mod cm;
pub mod device;
#[cfg(feature = "group")]
pub mod group;
pub mod memory;
pub mod prelude;
pub mod qp;
#[cfg(feature = "soft")]
pub mod soft;

/// Runs the example in the README.
#[cfg(all(doctest, feature = "soft"))]
#[doc = include_str!("../README.md")]
struct Readme;
