//! RDMA's numbers: GIDs, keys, sequence numbers, MTUs, timers, access flags, status codes.
//!
//! Plain values without memory, device or C library behind them. Every other crate of the stack
//! speaks in them.
//!
//! | kind | types | rule |
//! |---|---|---|
//! | addresses | [`Gid`], [`Guid`], [`Lid`] | bytes in network order, text as the tools print it |
//! | keys and numbers | [`Lkey`], [`Rkey`], [`Qpn`], [`Psn`] | 24-bit ones cannot hold a 25th bit |
//! | codes | [`Mtu`], [`AckTimeout`], [`MinRnrTimer`], [`MaxAckRetries`], [`MaxRnrRetries`] | cannot hold a code that the specification does not define |
//! | flags | [`AccessFlags`], [`DeviceCapabilities`], [`OdpCapabilities`], [`OdpOperations`], [`RawPacketCapabilities`], [`QpAttributes`] | the bits of C, named or not |
//! | C enums | [`WcStatus`], [`WcOpcode`], [`GidType`], [`LinkLayer`], [`PortState`], [`QpState`], [`QpType`], [`AsyncEventKind`], [`AtomicCapability`], [`NodeType`], [`TransportType`], [`LinkWidth`], [`LinkSpeed`], [`PhysicalState`] | any integer is a value: what a newer kernel invents is data, not an error |
//!
//! [`QpTransition`] is the table of a queue pair's states: which follows which, and with what
//! attributes.
//!
//! The numeric values are those of `infiniband/verbs.h` (rdma-core 55).
//!
//! # Features
//!
//! `serde` (off by default): every type can be serialised. Numbers and codes are bare integers,
//! [`Gid`] and [`Guid`] are text in human-readable formats and bytes in others, flags are
//! names or bits likewise. Deserialising checks what the constructors check.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod macros;

mod access;
mod atomic;
mod capability;
mod error;
mod event;
mod gid;
mod guid;
mod key;
mod lid;
mod link;
mod mtu;
mod node;
mod port;
mod psn;
mod qp_type;
mod qpn;
mod retry;
mod state;
mod timer;
mod transition;
mod wc;

pub use access::{AccessError, AccessFlags};
pub use atomic::AtomicCapability;
pub use capability::{DeviceCapabilities, OdpCapabilities, OdpOperations, RawPacketCapabilities};
pub use error::{OutOfRangeError, ParseGidError, ParseGuidError};
pub use event::AsyncEventKind;
pub use gid::{Gid, GidType};
pub use guid::Guid;
pub use key::{Lkey, Rkey};
pub use lid::Lid;
pub use link::{LinkSpeed, LinkWidth, PhysicalState};
pub use mtu::Mtu;
pub use node::{NodeType, TransportType};
pub use port::{LinkLayer, PortState};
pub use psn::Psn;
pub use qp_type::QpType;
pub use qpn::Qpn;
pub use retry::{MaxAckRetries, MaxRnrRetries};
pub use state::QpState;
pub use timer::{AckTimeout, MinRnrTimer};
pub use transition::{QpAttributes, QpTransition};
pub use wc::{WcOpcode, WcStatus};

/// The long name of [`Psn`].
pub type PacketSequenceNumber = Psn;

/// The long name of [`Mtu`].
pub type MaximumTransferUnit = Mtu;
