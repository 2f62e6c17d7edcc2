//! IP headers, to the extent that the ICRC and packet captures need them.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::bytes::{Reader, Writer};
use super::error::{EmitError, ParseError, room, take};
use super::udp::UdpHeader;

/// The protocol number of UDP.
const UDP: u8 = 17;

/// The default TTL and hop limit.
const HOPS: u8 = 64;

/// An IP header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IpHeader {
    /// An IPv4 header.
    V4(Ipv4Header),
    /// An IPv6 header.
    V6(Ipv6Header),
}

impl IpHeader {
    /// Reads the header at the beginning of an IP datagram, and returns the datagram's payload.
    /// Bytes that the link added after the datagram's end are dropped.
    ///
    /// # Errors
    ///
    /// Returns a [`ParseError`] for everything that RoCEv2 does not send: other protocols,
    /// fragments, options. A datagram that is truncated or has a wrong checksum is an error, too.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let mut rest = datagram;
        let (header, len) = match datagram.first().ok_or(ParseError::Truncated)? >> 4 {
            4 => {
                let header = Ipv4Header::parse(take(&mut rest)?)?;
                let carried = usize::from(header.total_length).checked_sub(Ipv4Header::LEN);
                (Self::V4(header), carried)
            }
            6 => {
                let header = Ipv6Header::parse(take(&mut rest)?)?;
                (Self::V6(header), Some(usize::from(header.payload_length)))
            }
            version => return Err(ParseError::IpVersion(version)),
        };
        let carried = len.and_then(|len| rest.get(..len)).ok_or(ParseError::Truncated)?;
        Ok((header, carried))
    }

    /// Writes the header, and returns the rest of the buffer.
    ///
    /// # Errors
    ///
    /// Returns [`EmitError::NoRoom`] if the buffer is too small.
    pub fn emit<'a>(&self, bytes: &'a mut [u8]) -> Result<&'a mut [u8], EmitError> {
        let mut rest = bytes;
        match self {
            Self::V4(header) => header.emit(room(&mut rest)?),
            Self::V6(header) => header.emit(room(&mut rest)?),
        }
        Ok(rest)
    }
}

/// An IPv4 header without options, for UDP (RFC 791).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Ipv4Header, UdpHeader};
///
/// let udp = UdpHeader::new(0xc121, 40).unwrap();
/// let ip = Ipv4Header::new([10, 0, 1, 1].into(), [10, 0, 1, 2].into(), &udp).unwrap();
/// let ip = Ipv4Header { identification: 0xa2b2, ..ip };
/// let mut bytes = [0; Ipv4Header::LEN];
/// ip.emit(&mut bytes);
/// assert_eq!(bytes[..12], [0x45, 0, 0, 0x44, 0xa2, 0xb2, 0x40, 0, 64, 17, 0x81, 0xf4]);
/// assert_eq!(Ipv4Header::parse(&bytes), Ok(ip));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// The length of the datagram in bytes, including this header.
    pub total_length: u16,
    /// The number that a datagram's fragments would share.
    pub identification: u16,
    /// DF: routers must not fragment the datagram.
    pub dont_fragment: bool,
    /// The number of routers that the datagram may still pass.
    pub ttl: u8,
    /// The sender's address.
    pub source: Ipv4Addr,
    /// The receiver's address.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// The size in bytes.
    pub const LEN: usize = 20;

    /// The first byte: version 4, five words.
    const VERSION: u8 = 0x45;

    /// The DF flag in the word that also contains the fragment offset.
    const DONT_FRAGMENT: u16 = 0x4000;

    /// Creates the header that Linux sends from an unconnected socket that is set not to fragment:
    /// DF is set, and the identification is 0. Returns `None` if the length does not fit into an IP
    /// datagram.
    #[must_use]
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, udp: &UdpHeader) -> Option<Self> {
        Some(Self {
            tos: 0,
            total_length: udp.length.checked_add(20)?,
            identification: 0,
            dont_fragment: true,
            ttl: HOPS,
            source,
            destination,
        })
    }

    /// Reads the header.
    ///
    /// # Errors
    ///
    /// Returns a [`ParseError`] for another version, options, fragments, another protocol, or a wrong checksum.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let mut fields = Reader::new(bytes);
        match fields.u8() {
            Self::VERSION => {}
            version if version >> 4 == 4 => return Err(ParseError::Ipv4Options(version & 0x0f)),
            version => return Err(ParseError::IpVersion(version >> 4)),
        }
        let tos = fields.u8();
        let total_length = fields.u16();
        let identification = fields.u16();
        let fragment = fields.u16();
        let ttl = fields.u8();
        let protocol = fields.u8();
        let _checksum = fields.u16();
        if fragment & !Self::DONT_FRAGMENT != 0 {
            return Err(ParseError::Fragment);
        }
        if protocol != UDP {
            return Err(ParseError::Protocol(protocol));
        }
        if checksum(bytes) != 0 {
            return Err(ParseError::Ipv4Checksum);
        }
        Ok(Self {
            tos,
            total_length,
            identification,
            dont_fragment: fragment != 0,
            ttl,
            source: fields.array().into(),
            destination: fields.array().into(),
        })
    }

    /// Writes the header, with its checksum.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        self.emit_without_checksum(bytes);
        let checksum = checksum(bytes);
        if let Some(place) = bytes.get_mut(10..12) {
            place.copy_from_slice(&checksum.to_be_bytes());
        }
    }

    /// Writes the header, with 0 as its checksum.
    pub(super) fn emit_without_checksum(&self, bytes: &mut [u8; Self::LEN]) {
        Writer::new(bytes)
            .u8(Self::VERSION)
            .u8(self.tos)
            .u16(self.total_length)
            .u16(self.identification)
            .u16(if self.dont_fragment { Self::DONT_FRAGMENT } else { 0 })
            .u8(self.ttl)
            .u8(UDP)
            .u16(0)
            .array(self.source.octets())
            .array(self.destination.octets());
    }
}

/// Returns the complement of the one's complement sum of all words (RFC 1071). It is 0 for a header
/// that includes its checksum.
fn checksum(header: &[u8; Ipv4Header::LEN]) -> u16 {
    let (words, _) = header.as_chunks();
    !words.iter().fold(0, |sum: u16, &word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes(word));
        sum.wrapping_add(carry.into())
    })
}

/// An IPv6 header without extensions, for UDP (RFC 8200).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Ipv6Header, UdpHeader};
///
/// let udp = UdpHeader::new(0xc121, 40).unwrap();
/// let (source, destination) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
/// let ip = Ipv6Header { flow_label: 0x12345, ..Ipv6Header::new(source, destination, &udp) };
/// let mut bytes = [0; Ipv6Header::LEN];
/// ip.emit(&mut bytes);
/// assert_eq!(bytes[..8], [0x60, 0x01, 0x23, 0x45, 0, 48, 17, 64]);
/// assert_eq!(Ipv6Header::parse(&bytes), Ok(ip));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits that routers use to distribute flows. Higher bits are not sent.
    pub flow_label: u32,
    /// The length in bytes, not including this header.
    pub payload_length: u16,
    /// The number of routers that the datagram may still pass.
    pub hop_limit: u8,
    /// The sender's address.
    pub source: Ipv6Addr,
    /// The receiver's address.
    pub destination: Ipv6Addr,
}

impl Ipv6Header {
    /// The size in bytes.
    pub const LEN: usize = 40;

    /// Creates the header of a datagram.
    #[must_use]
    pub const fn new(source: Ipv6Addr, destination: Ipv6Addr, udp: &UdpHeader) -> Self {
        Self {
            traffic_class: 0,
            flow_label: 0,
            payload_length: udp.length,
            hop_limit: HOPS,
            source,
            destination,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    ///
    /// Returns a [`ParseError`] for another version or another protocol.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let mut fields = Reader::new(bytes);
        let [first, second, third, fourth] = fields.array();
        if first >> 4 != 6 {
            return Err(ParseError::IpVersion(first >> 4));
        }
        let payload_length = fields.u16();
        let protocol = fields.u8();
        if protocol != UDP {
            return Err(ParseError::Protocol(protocol));
        }
        Ok(Self {
            traffic_class: first << 4 | second >> 4,
            flow_label: u32::from_be_bytes([0, second & 0x0f, third, fourth]),
            payload_length,
            hop_limit: fields.u8(),
            source: fields.array::<16>().into(),
            destination: fields.array::<16>().into(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let class = u32::from(self.traffic_class) << 20;
        Writer::new(bytes)
            .u32(6 << 28 | class | self.flow_label & 0xf_ffff)
            .u16(self.payload_length)
            .u8(UDP)
            .u8(self.hop_limit)
            .array(self.source.octets())
            .array(self.destination.octets());
    }
}
