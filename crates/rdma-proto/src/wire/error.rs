//! Errors from parsing and writing packets.

use core::error::Error;
use core::fmt;

/// The reason that bytes cannot be parsed. The packet must be dropped.
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Packet, ParseError};
///
/// let congestion_notification = [0x81; 32];
/// assert_eq!(Packet::parse(&congestion_notification), Err(ParseError::Opcode(0x81)));
/// assert_eq!(ParseError::Opcode(0x81).to_string(), "opcode 0x81 is not one of RC, UC or UD");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end before the headers do, or before the length that a header states.
    Truncated,
    /// The opcode does not belong to RC, UC or UD.
    Opcode(u8),
    /// The transport version is not 0.
    TransportVersion(u8),
    /// The length in bytes is not a multiple of 4.
    Length(usize),
    /// The payload is shorter than its pad.
    PadCount(u8),
    /// The IP version is neither 4 nor 6.
    IpVersion(u8),
    /// The IPv4 header has options: it is this many words long, instead of 5.
    Ipv4Options(u8),
    /// The datagram is a fragment.
    Fragment,
    /// The checksum of the IPv4 header is wrong.
    Ipv4Checksum,
    /// The protocol after the IP header is not UDP.
    Protocol(u8),
}

rdma_types::debug_messages!(
    enum ParseError {
        Truncated,
        Opcode(it),
        TransportVersion(it),
        Length(it),
        PadCount(it),
        IpVersion(it),
        Ipv4Options(it),
        Fragment,
        Ipv4Checksum,
        Protocol(it),
    }
);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the packet ends too early"),
            Self::Opcode(code) => write!(f, "opcode {code:#04x} is not one of RC, UC or UD"),
            Self::TransportVersion(version) => write!(f, "transport version {version} is not 0"),
            Self::Length(len) => write!(f, "the length of {len} bytes is not a multiple of 4"),
            Self::PadCount(count) => write!(f, "the packet is shorter than its {count} pad bytes"),
            Self::IpVersion(version) => write!(f, "IP version {version} is neither 4 nor 6"),
            Self::Ipv4Options(words) => {
                write!(f, "an IPv4 header of {words} words; those of RoCEv2 have no options")
            }
            Self::Fragment => f.write_str("a fragment; packets of RoCEv2 are whole"),
            Self::Ipv4Checksum => f.write_str("the checksum of the IPv4 header is wrong"),
            Self::Protocol(protocol) => write!(f, "protocol {protocol} is not UDP"),
        }
    }
}

impl Error for ParseError {}

/// The reason that a packet was not written. The contents of the buffer are then unspecified.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmitError {
    /// The buffer is too small for the packet.
    NoRoom,
    /// The headers do not match the opcode.
    Headers,
    /// The pad count in the BTH does not match the payload.
    PadCount,
}

rdma_types::debug_messages!(
    enum EmitError {
        NoRoom,
        Headers,
        PadCount,
    }
);

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoom => "the packet needs a larger buffer",
            Self::Headers => "the headers are not those of the opcode; see `Opcode::headers`",
            Self::PadCount => "the pad count does not match the payload; use `PadCount::of`",
        })
    }
}

impl Error for EmitError {}

/// Splits a header off the front of the input.
#[inline]
pub(super) fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; N], ParseError> {
    let (array, rest) = bytes.split_first_chunk().ok_or(ParseError::Truncated)?;
    *bytes = rest;
    Ok(array)
}

/// Splits the space for a header off the front of the output buffer.
#[inline]
pub(super) fn room<'a, const N: usize>(
    bytes: &mut &'a mut [u8],
) -> Result<&'a mut [u8; N], EmitError> {
    let all = core::mem::take(bytes);
    let (array, rest) = all.split_first_chunk_mut().ok_or(EmitError::NoRoom)?;
    *bytes = rest;
    Ok(array)
}
