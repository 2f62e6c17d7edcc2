//! A software RDMA device at the C ABI of libibverbs: no kernel module, no root, no C library.
//!
//! [`install`] puts two devices into the process: `soft0`, whose port is RoCE, and `softib0`, whose
//! port is InfiniBand. They are found through the same list as hardware (`rdma_mem::list_devices`),
//! and nothing above `rdma-sys` knows the difference. [`Builder`] makes more, with names, schedules
//! and limits of their own.
//!
//! ```
//! rdma_soft::install();
//! let soft0 = rdma_soft::SoftDevice::find("soft0").unwrap();
//! assert_eq!(soft0.gids().len(), 5);
//! ```
//!
//! # What it does
//!
//! Reliable connections, in a process, between processes of one host, and [to other hosts](Builder::listen): SEND, RDMA WRITE, RDMA READ and atomics, with
//! immediate data, inline data, unsignaled, solicited and fenced requests; unreliable connections and
//! datagrams, also to multicast groups; shared receive queues; extended queue pairs and completion
//! queues, with timestamps; completion channels and asynchronous events; the state machine of queue pairs with
//! the refusals of the specification; keys, protection domains, bounds and rights checked when a
//! request is executed; receiver-not-ready and unreachable peers with timers and retry counts; the
//! error state with its flushes; completion queues that overflow. A request is executed as a checked
//! copy between two registered regions, on the thread that posts it, or when the
//! [`Schedule`] says; or by packets, which is how it goes to another process or host, and where a device
//! [asks for them](Builder::force_wire), writes [captures](Builder::pcap), or is in a simulated [`Network`].
//!
//! # What it does not
//!
//! It pins nothing: memory that is unmapped while it is registered is gone, where hardware would go on with
//! the old pages. What is executed later than its post fails then as with a bad key; what is executed within
//! its post faults.
//!
//! Fields of a completion that the specification leaves undefined hold junk, on purpose.
//!
//! # State
//!
//! Devices are global to the process and live as long as it; those of a [`Network`] leave the list
//! of devices when the network is dropped. A forked child must not use them. `soft0` and `softib0` are
//! the same devices in all processes of a user on a host, whose queue pairs reach each other; see [`Peers`].
// Tests measure and race on their own.
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

/// Installs a device, if it can only be without what was asked for.
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
        // A device of that name may be there: this was called before, or a builder made it.
        Ok(_) | Err(_) => {}
    }
}

/// Has a device look as the environment says.
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

/// Has a device shared as the environment says.
#[cfg(not(loom))]
fn shared(device: Builder) -> Builder {
    let device = device.peers(Peers::of_environment());
    match std::env::var_os("RDMA_SOFT_DIRECTORY") {
        Some(path) if !path.is_empty() => device.directory(path),
        _ => device,
    }
}

/// Has a RoCE device listen where the environment says.
#[cfg(not(loom))]
fn listening(link: Link, device: Builder) -> Builder {
    match std::env::var_os("RDMA_SOFT_LISTEN").filter(|_| link == Link::Ethernet) {
        Some(place) if !place.is_empty() => device.listen(place.to_string_lossy()),
        _ => device,
    }
}

/// Installs `soft0` and `softib0`. Calling it again, from any thread, changes nothing.
///
/// Programs that want other devices use [`Builder`], with or without this. Environment variables are read:
/// `RDMA_SOFT_PEERS` ([`Peers`]), `RDMA_SOFT_DIRECTORY` ([`Builder::directory`]), `RDMA_SOFT_PEER_LIMIT`
/// ([`Builder::peer_limit`]), `RDMA_SOFT_RETRY_TIME` ([`Builder::retry_time`]), `RDMA_SOFT_LISTEN`, the addresses at
/// which `soft0` listens ([`Builder::listen`]), `RDMA_SOFT_LIKE`, the name of a [`Profile`] for both
/// ([`Builder::like`], except its link layer), and `RDMA_SOFT_PCAP`, a capture file ([`Builder::pcap`]). If the file
/// cannot be written, or no profile has that name, neither device can be opened; if `soft0` cannot listen, it cannot be
/// opened. The device is in the list all the same: `ibv_open_device` reports the reason on standard error, and fails
/// with `EIO`. A `tracing` event already reports it here.
pub fn install() {
    for (name, link) in [("soft0", Link::Ethernet), ("softib0", Link::InfiniBand)] {
        let device = like(Builder::new(name)).link(link);
        #[cfg(not(loom))]
        let device = listening(link, shared(device));
        install_one(device);
    }
}
