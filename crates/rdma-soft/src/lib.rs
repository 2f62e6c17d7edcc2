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
mod fabric;
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
pub use limits::Limits;
pub use link::Link;
#[cfg(not(loom))]
pub use link::local::host::Peers;
pub use link::model::LinkModel;
#[cfg(not(loom))]
pub use network::{Network, OtherNetwork};
pub use profile::Profile;
pub use schedule::Schedule;
pub use soft_device::SoftDevice;

pub use rdma_types::{Gid, GidType, Guid, Qpn};

/// Installs a device. If the capture or an address is not available, installs a device that cannot be opened instead.
/// If the device cannot be shared, installs it for this process alone.
fn install_one(device: Builder) {
    match device.clone().install() {
        Err(error @ (InstallError::NoCapture { .. } | InstallError::CannotListen { .. })) => {
            tracing::warn!(%error, "a software device cannot be opened");
            install_one(device.unusable(error));
        }
        #[cfg(not(loom))]
        Err(error @ InstallError::NotShared { .. }) => {
            tracing::warn!(%error, "other processes cannot reach a software device");
            install_one(device.peers(Peers::ThisProcess));
        }
        // If the name is taken, the device was installed by an earlier call of `install` or by a builder.
        Ok(_) | Err(_) => {}
    }
}

/// Applies the profile that the environment names.
fn like(device: Builder) -> Builder {
    let Some(name) = std::env::var_os("RDMA_SOFT_LIKE").filter(|name| !name.is_empty()) else {
        return device;
    };
    let name = name.to_string_lossy();
    match Profile::named(&name) {
        Some(profile) => device.like(profile),
        None => {
            let error = InstallError::NoProfile { name: name.into_owned() };
            tracing::warn!(%error, "a software device cannot be opened");
            device.unusable(error)
        }
    }
}

/// Shares a device with the processes that the environment specifies.
#[cfg(not(loom))]
fn shared(device: Builder) -> Builder {
    let device = device.peers(Peers::of_environment());
    match std::env::var_os("RDMA_SOFT_DIRECTORY") {
        Some(path) if !path.is_empty() => device.directory(path),
        _ => device,
    }
}

/// Makes a RoCE device listen at the addresses that the environment names.
#[cfg(not(loom))]
fn listening(link: Link, device: Builder) -> Builder {
    match std::env::var_os("RDMA_SOFT_LISTEN").filter(|_| link == Link::Ethernet) {
        Some(place) if !place.is_empty() => device.listen(place.to_string_lossy()),
        _ => device,
    }
}

/// Installs `soft0` and `softib0`. Calling this again, from any thread, changes nothing.
///
/// Programs that need other devices use [`Builder`], with or without this function. The following environment variables
/// apply:
///
/// - `RDMA_SOFT_PEERS`: see [`Peers`].
/// - `RDMA_SOFT_DIRECTORY`: see [`Builder::directory`].
/// - `RDMA_SOFT_PEER_LIMIT`: see [`Builder::peer_limit`].
/// - `RDMA_SOFT_RETRY_TIME`: see [`Builder::retry_time`].
/// - `RDMA_SOFT_LISTEN`: the addresses at which `soft0` listens, see [`Builder::listen`].
/// - `RDMA_SOFT_LIKE`: the name of a [`Profile`] for both devices, see [`Builder::like`]; their link layers do not
///   change.
/// - `RDMA_SOFT_PCAP`: a capture file, see [`Builder::pcap`].
///
/// If the capture file cannot be written, or no profile has the given name, neither device can be opened. If `soft0`
/// cannot listen, `soft0` cannot be opened. A device that cannot be opened is still in the list: `ibv_open_device`
/// prints the reason on standard error and fails with `EIO`. This function reports the reason earlier, in a `tracing`
/// event.
pub fn install() {
    for (name, link) in [("soft0", Link::Ethernet), ("softib0", Link::InfiniBand)] {
        let device = like(Builder::new(name)).link(link);
        #[cfg(not(loom))]
        let device = listening(link, shared(device));
        install_one(device);
    }
}

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
