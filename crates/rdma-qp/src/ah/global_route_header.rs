//! The header before the payload of a received datagram.

use std::fmt;

use rdma_sys::{ibv_gid, ibv_grh};

/// The first 40 bytes of the buffer in which a datagram was received. They are undefined unless
/// [`DatagramSource::has_header`](crate::DatagramSource::has_header) is true.
///
/// The bytes are a global route header, which contains the sender's address. With RoCE v2 over IPv4, the last 20 bytes
/// are an IPv4 header instead. IBTA vol 1, section 11.4.2.1; `man ibv_create_ah_from_wc`.
///
/// ```
/// use rdma_qp::GlobalRouteHeader;
///
/// let received = [7; 48];
/// let (header, message) = GlobalRouteHeader::split(&received).unwrap();
/// assert_eq!((header.as_bytes(), message), (&[7; 40], &[7; 8][..]));
/// ```
#[doc(alias = "ibv_grh")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GlobalRouteHeader([u8; Self::BYTES]);

impl GlobalRouteHeader {
    /// The length of the header. A receive for datagrams must have room for the header in addition to the message.
    pub const BYTES: usize = 40;

    /// Splits the bytes of a receive into header and message. `None` if there are too few bytes for a header.
    #[must_use]
    pub fn split(received: &[u8]) -> Option<(Self, &[u8])> {
        let (header, message) = received.split_first_chunk()?;
        Some((Self(*header), message))
    }

    /// Returns the bytes as they arrived.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub(crate) fn to_raw(self) -> ibv_grh {
        let [a, b, c, d, e, f, next_hdr, hop_limit, addresses @ ..] = self.0;
        let gid = |from: usize| {
            let mut raw = [0; 16];
            raw.copy_from_slice(&addresses[from..from + 16]);
            ibv_gid { raw }
        };
        ibv_grh {
            version_tclass_flow: u32::from_ne_bytes([a, b, c, d]),
            paylen: u16::from_ne_bytes([e, f]),
            next_hdr,
            hop_limit,
            sgid: gid(0),
            dgid: gid(16),
        }
    }
}

impl From<[u8; Self::BYTES]> for GlobalRouteHeader {
    fn from(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for GlobalRouteHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GlobalRouteHeader(")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_messages_have_no_header() {
        assert_eq!(GlobalRouteHeader::split(&[0; 39]), None);
        assert_eq!(GlobalRouteHeader::split(&[0; 40]).unwrap().1, []);
    }
}
