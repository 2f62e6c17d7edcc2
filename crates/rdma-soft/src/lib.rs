//! A software RDMA device at the C ABI of libibverbs: no kernel module, no root, no C library.
//!
//! [`install`] adds two devices to the process: `soft0` with a RoCE port, and `softib0` with an InfiniBand port. They
//! are in the same list as hardware (`rdma_mem::list_devices`), and nothing above `rdma-sys` sees a difference.
//! [`Builder`] creates more devices, with their own names, schedules and limits.
//!
//! ```
//! rdma_soft::install();
//! let soft0 = rdma_soft::SoftDevice::find("soft0").unwrap();
//! assert_eq!(soft0.gids().len(), 5);
//! ```
//!
//! # Features
//!
//! - Reliable connections within a process, between processes of one host, and [to other hosts](Builder::listen). They
//!   support SEND, RDMA WRITE, RDMA READ and atomics, with immediate data, inline data, and unsignaled, solicited and
//!   fenced requests.
//! - Unreliable connections, and datagrams, including multicast.
//! - Shared receive queues.
//! - Extended queue pairs and completion queues, with timestamps.
//! - Completion channels and asynchronous events.
//! - The state machine of queue pairs, with the errors that the specification requires.
//! - Keys, protection domains, bounds and rights, checked when a request is executed.
//! - Timers and retry counts, for peers that are unreachable or have no receive request.
//! - The error state, in which requests are flushed, and completion queues that overflow.
//!
//! A request is executed as a checked copy between two registered regions. This happens on the thread that posts the
//! request, or when the [`Schedule`] decides. Packets are used between processes and hosts, by devices with
//! [`Builder::force_wire`] or [captures](Builder::pcap), and in a simulated [`Network`].
//!
//! # Differences from hardware
//!
//! The device pins nothing. If memory is unmapped while it is registered, it is lost, whereas hardware would continue
//! to use the old pages. A request that is executed after its post returns then fails as with a bad key. A request that
//! is executed within its post faults.
//!
//! Completion fields that the specification leaves undefined are deliberately filled with junk.
//!
//! # State
//!
//! Devices are global to the process and exist until it exits, but devices of a [`Network`] leave the device list when
//! the network is dropped. A forked child must not use them. `soft0` and `softib0` are the same devices in all
//! processes of a user on a host, and their queue pairs reach each other; see [`Peers`].
// Tests measure time and create races in their own ways.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod abi;
mod address;
mod builder;
mod counters;
mod device;
mod engine;
mod environment;
mod fabric;
mod faults;
mod limits;
mod link;
mod memory;
#[cfg(not(loom))] // models have no links that lose packets
mod network;
mod profile;
mod schedule;
mod soft_device;
mod sync;

pub use abi::{Verbs, verbs};
pub use builder::Builder;
pub use counters::Counters;
pub use device::gid_place::GidPlace;
pub use device::subnet::InstallError;
pub use environment::install;
pub use faults::{Faults, FaultsError};
pub use limits::Limits;
pub use link::Link;
#[cfg(not(loom))]
pub use link::local::host::Peers;
pub use link::model::LinkModel;
pub use link::simulation::SentPacket;
#[cfg(not(loom))]
pub use network::{Network, OtherNetwork};
pub use profile::Profile;
pub use schedule::Schedule;
pub use soft_device::SoftDevice;

pub use rdma_types::{Gid, GidType, Guid, Qpn};

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
