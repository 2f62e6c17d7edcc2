//! The software devices, and devices that a program configures itself with names, schedules and limits.
//!
//! The devices `soft0` and `softib0` need no call of this module, because [`open_device`](crate::device::open_device)
//! and [`list_devices`](crate::device::list_devices) install them.
//!
//! Creates a device that delays its packets, reproducibly for a given seed:
//! ```
//! use rdma::soft::{Builder, Schedule};
//!
//! let device = Builder::new("late").schedule(Schedule::Deferred { seed: 7 }).install()?;
//! let pd = rdma::device::open_device(device.name())?.allocate_pd()?;
//! # drop(pd);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use rdma_soft::{
    Builder, Counters, Faults, FaultsError, GidPlace, InstallError, Limits, Link, LinkModel,
    Network, OtherNetwork, Peers, Profile, Schedule, SentPacket, SoftDevice, install, verbs,
};
