//! The packets of RoCEv2: structs for the headers, and their bytes.
//!
//! ```text
//! IPv4 | IPv6   UDP   BTH   DETH | RETH | AtomicETH | AETH [AtomicAckETH]   ImmDt | IETH   payload   pad   ICRC
//!               └────── the opcode in the BTH selects which headers in the middle follow ──────┘
//! ```
//!
//! [`Packet`] is the payload of a UDP datagram: [`Headers`], a payload, and the ICRC, which
//! [`icrc`] computes. Each header is a struct with `parse` and `emit`, and has a file in `headers`.
//! [`Opcode::headers`] lists the headers after the BTH.
//!
//! # Rules
//!
//! - Nothing panics, whatever the bytes. Nothing allocates.
//! - `parse` checks only the form. The requesters and responders check whether a packet is
//!   expected, may arrive now, and has the right length.
//! - `parse` ignores reserved bits, and `emit` writes them as zeros, as IBTA requires. The same holds for the bytes of
//!   the pad. All other bytes of a packet that `parse` accepts are written unchanged by `emit`.
//! - Numbers are in host order in the structs, and in network order in the bytes.
//!
//! # Examples
//!
//! Builds a packet, adds its ICRC, and parses it again:
//!
//! ```
//! use rdma_proto::wire::{Bth, Headers, IpHeader, Ipv4Header, Opcode, Operation, Packet, PadCount};
//! use rdma_proto::wire::{Service, UdpHeader, icrc};
//! use rdma_types::{Psn, Qpn};
//!
//! let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
//! let payload = b"hello";
//! let bth = Bth {
//!     pad_count: PadCount::of(payload.len()),
//!     ack_request: true,
//!     ..Bth::new(opcode, Qpn::masked(0x11), Psn::masked(0x100000))
//! };
//! let mut packet = Packet { headers: Headers::new(bth), payload, icrc: 0 };
//! assert_eq!(packet.wire_len(), 12 + 5 + 3 + 4);
//!
//! // The ICRC also covers the IP and UDP headers.
//! let udp = UdpHeader::new(0xc121, packet.wire_len()).unwrap();
//! let ip = IpHeader::V4(Ipv4Header::new([10, 0, 1, 1].into(), [10, 0, 1, 2].into(), &udp).unwrap());
//! let mut room = [0; 64];
//! let datagram = packet.emit(&mut room)?;
//! let covered = datagram.split_last_chunk::<4>().unwrap().0;
//! packet.icrc = icrc(&ip, &udp, covered);
//!
//! let datagram = packet.emit(&mut room)?;
//! assert_eq!(Packet::parse(datagram), Ok(packet));
//! # Ok::<(), rdma_proto::wire::EmitError>(())
//! ```

pub(crate) mod bytes;
mod error;
mod headers;
mod icrc;
mod ip;
mod opcode;
mod operation;
mod packet;
mod udp;

pub use error::{EmitError, ParseError};
pub use headers::Headers;
pub use headers::aeth::{Aeth, CreditCount, NakCode, Syndrome};
pub use headers::atomic::AtomicEth;
pub use headers::atomic_ack::AtomicAckEth;
pub use headers::bth::{Bth, PadCount};
pub use headers::deth::Deth;
pub use headers::ieth::Ieth;
pub use headers::imm::ImmDt;
pub use headers::reth::Reth;
pub use icrc::identification::IdentificationSearch;
pub use icrc::{icrc, icrc_behind};
pub use ip::{IpHeader, Ipv4Header, Ipv6Header};
pub use opcode::{Header, Opcode, Service};
pub use operation::Operation;
pub use packet::Packet;
pub use udp::UdpHeader;
