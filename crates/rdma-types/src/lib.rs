//! RDMA's numbers: GIDs, keys, sequence numbers, MTUs, timers, access flags, status codes.
//!
//! They are plain values, independent of memory, devices and C libraries. All other crates of the
//! stack use them.
//!
//! | kind | types | rule |
//! |---|---|---|
//! | addresses | [`Gid`], [`Guid`], [`Lid`], [`Pkey`] | GIDs and GUIDs hold bytes in network order, LIDs and P_Keys a number; text is as the tools print it |
//! | keys and numbers | [`Lkey`], [`Rkey`], [`Qpn`], [`Psn`] | QPNs and PSNs have 24 bits, and cannot hold a 25th; keys have 32 |
//! | codes | [`Mtu`], [`AckTimeout`], [`MinRnrTimer`], [`MaxAckRetries`], [`MaxRnrRetries`] | cannot hold a code that the specification does not define |
//! | flags | [`AccessFlags`], [`DeviceCapabilities`], [`OdpCapabilities`], [`OdpOperations`], [`RawPacketCapabilities`], [`QpAttributes`] | hold every bit that C sets, named or not |
//! | C enums | [`WcStatus`], [`WcOpcode`], [`GidType`], [`LinkLayer`], [`PortState`], [`QpState`], [`QpType`], [`AsyncEventKind`], [`AtomicCapability`], [`NodeType`], [`TransportType`], [`LinkWidth`], [`LinkSpeed`], [`PhysicalState`] | every integer is valid: a value that a newer kernel introduces is data, not an error |
//!
//! [`QpTransition`] is the table of a queue pair's states: the transitions between them, with their
//! attributes.
//!
//! The numeric values are those of `infiniband/verbs.h` (rdma-core 55).
//!
//! # Features
//!
//! `serde` (off by default): every type in the table above can be serialised. Numbers and codes are
//! bare integers. [`Gid`] and [`Guid`] are text in human-readable formats and bytes in others;
//! likewise, flags are names or bits. Deserialising makes the same checks as the constructors.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod macros;

mod address;
mod device;
mod error;
mod memory;
#[doc(hidden)]
pub mod messages;
mod port;
mod qp;
mod wc;

pub use address::gid::{Gid, GidType};
pub use address::guid::Guid;
pub use address::lid::Lid;
pub use address::pkey::Pkey;
pub use device::atomic::AtomicCapability;
pub use device::capability::{
    DeviceCapabilities, OdpCapabilities, OdpOperations, RawPacketCapabilities,
};
pub use device::event::AsyncEventKind;
pub use device::node::{NodeType, TransportType};
pub use error::{OutOfRangeError, ParseGidError, ParseGuidError};
pub use memory::access::{AccessError, AccessFlags};
pub use memory::key::{Lkey, Rkey};
pub use port::link::{LinkSpeed, LinkWidth, PhysicalState};
pub use port::mtu::Mtu;
pub use port::state::{LinkLayer, PortState};
pub use qp::kind::QpType;
pub use qp::number::Qpn;
pub use qp::psn::Psn;
pub use qp::retry::{MaxAckRetries, MaxRnrRetries};
pub use qp::state::QpState;
pub use qp::timer::{AckTimeout, MinRnrTimer};
pub use qp::transition::{QpAttributes, QpTransition};
pub use wc::{WcOpcode, WcStatus};

/// The long name of [`Psn`].
pub type PacketSequenceNumber = Psn;

/// The long name of [`Mtu`].
pub type MaximumTransferUnit = Mtu;

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
