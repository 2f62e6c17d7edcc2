//! The IP addresses at the beginning of the private data.

use core::net::{IpAddr, Ipv6Addr};

use crate::wire::bytes::{Reader, Writer};

/// The header before the private data of a REQ or SIDR_REQ in the TCP and UDP port spaces (IBTA
/// annex A11). It leaves 56 bytes of private data in a REQ, and 180 in a SIDR_REQ.
///
/// A REP has no such header, so its 196 bytes of private data are all the program's.
///
/// # Examples
///
/// ```
/// use rdma_proto::cm::IpCmHeader;
///
/// let header = IpCmHeader::new("10.0.0.1".parse()?, "10.0.0.2".parse()?, 40_000).unwrap();
/// let mut private_data = [0; IpCmHeader::LEN + 5];
/// private_data[IpCmHeader::LEN..].copy_from_slice(b"hello");
/// header.emit(private_data.first_chunk_mut().unwrap());
///
/// let (parsed, rest) = IpCmHeader::parse(&private_data).unwrap();
/// assert_eq!((parsed, rest), (header, &b"hello"[..]));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[doc(alias = "cma_hdr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpCmHeader {
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
}

impl IpCmHeader {
    /// The size in bytes.
    pub const LEN: usize = 36;

    /// Creates a header. Returns `None` if one address is of IPv4 and the other of IPv6.
    #[must_use]
    pub const fn new(source: IpAddr, destination: IpAddr, source_port: u16) -> Option<Self> {
        if source.is_ipv4() == destination.is_ipv4() {
            Some(Self { source, destination, source_port })
        } else {
            None
        }
    }

    /// Returns the address of the active end.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        self.source
    }

    /// Returns the address of the passive end.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        self.destination
    }

    /// Returns the port of the active end. The port of the passive end is in the service ID.
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        self.source_port
    }

    /// Reads the header, and returns it with the rest of the private data. Returns `None` if the
    /// bytes are too short, the version is not 0, or the IP version is neither 4 nor 6.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = private_data.split_first_chunk::<{ Self::LEN }>()?;
        let mut fields = Reader::new(header);
        // The upper half is the major version; a minor version changes nothing that is read here.
        if fields.u8() >> 4 != 0 {
            return None;
        }
        let ip_version = fields.u8() >> 4;
        let source_port = fields.u16();
        let mut address = || match ip_version {
            4 => {
                let _unused: [u8; 12] = fields.array();
                Some(IpAddr::from(fields.array::<4>()))
            }
            6 => Some(IpAddr::from(fields.array::<16>())),
            _ => None,
        };
        let (source, destination) = (address()?, address()?);
        Some((Self { source, destination, source_port }, rest))
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let ip_version = if self.source.is_ipv4() { 4 } else { 6 };
        // An IPv4 address is in the last 4 bytes of its field.
        let field = |address| match address {
            IpAddr::V4(address) => Ipv6Addr::from(u128::from(u32::from(address))).octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Writer::new(bytes)
            .u8(0)
            .u8(ip_version << 4)
            .u16(self.source_port)
            .array(field(self.source))
            .array(field(self.destination));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_has_the_layout_of_the_annex() {
        let header = IpCmHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0x1234).unwrap();
        let mut bytes = [0xaa; IpCmHeader::LEN];
        header.emit(&mut bytes);
        let mut expected = [0; IpCmHeader::LEN];
        expected[1..4].copy_from_slice(&[0x40, 0x12, 0x34]);
        expected[16..20].copy_from_slice(&[10, 0, 0, 1]);
        expected[32..36].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(bytes, expected);
        assert_eq!(IpCmHeader::parse(&bytes), Some((header, &[][..])));
    }

    #[test]
    fn an_ipv6_header_has_the_layout_of_the_annex() {
        let (source, destination) = ([0xfe; 16], [0xfd; 16]);
        let header = IpCmHeader::new(source.into(), destination.into(), 1).unwrap();
        let mut bytes = [0xaa; IpCmHeader::LEN];
        header.emit(&mut bytes);
        assert_eq!(bytes[..4], [0, 0x60, 0, 1]);
        assert_eq!((&bytes[4..20], &bytes[20..]), (&source[..], &destination[..]));
        assert_eq!(IpCmHeader::parse(&bytes), Some((header, &[][..])));
    }

    #[test]
    fn other_versions_and_lengths_are_refused() {
        let header = IpCmHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1).unwrap();
        let mut bytes = [0; IpCmHeader::LEN];
        header.emit(&mut bytes);
        assert_eq!(IpCmHeader::parse(&bytes[1..]), None);
        for (at, value) in [(0, 0x10), (1, 0), (1, 0x50), (1, 0x70)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(IpCmHeader::parse(&other), None, "{value:#x}");
        }
        assert_eq!(IpCmHeader::new([10, 0, 0, 1].into(), [0; 16].into(), 1), None);
    }
}
