//! The UDP header of a packet.

use super::bytes::{Reader, Writer};

/// A UDP header (RFC 768).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::UdpHeader;
///
/// let udp = UdpHeader::new(0xc121, 40).unwrap();
/// let mut bytes = [0; UdpHeader::LEN];
/// udp.emit(&mut bytes);
/// assert_eq!(bytes, [0xc1, 0x21, 0x12, 0xb7, 0, 48, 0, 0]);
/// assert_eq!(UdpHeader::parse(&bytes), udp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpHeader {
    /// Any port. Routers use it to distribute flows.
    pub source_port: u16,
    /// The RoCEv2 port, [`ROCE_V2_PORT`](Self::ROCE_V2_PORT).
    pub destination_port: u16,
    /// The length in bytes, including this header.
    pub length: u16,
    /// The UDP checksum. 0 means none, because the ICRC takes its place.
    pub checksum: u16,
}

impl UdpHeader {
    /// The size in bytes.
    pub const LEN: usize = 8;

    /// The destination port of RoCEv2 packets (IBTA annex A17).
    pub const ROCE_V2_PORT: u16 = 4791;

    /// Creates the header of a packet of `packet_len` bytes, without a checksum; `None` if the
    /// length does not fit into a UDP datagram.
    #[must_use]
    pub fn new(source_port: u16, packet_len: usize) -> Option<Self> {
        let length = u16::try_from(packet_len.checked_add(Self::LEN)?).ok()?;
        Some(Self { source_port, destination_port: Self::ROCE_V2_PORT, length, checksum: 0 })
    }

    /// Reads the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Reader::new(bytes);
        Self {
            source_port: fields.u16(),
            destination_port: fields.u16(),
            length: fields.u16(),
            checksum: fields.u16(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        Writer::new(bytes)
            .u16(self.source_port)
            .u16(self.destination_port)
            .u16(self.length)
            .u16(self.checksum);
    }
}
