//! DETH: the sender of a datagram, and its Q_Key.

use rdma_types::Qpn;

use crate::wire::bytes::{Reader, Writer};

/// The datagram extended transport header (IBTA section 9.3).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::Deth;
///
/// let deth = Deth::parse(&[0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0x13]);
/// assert_eq!((deth.qkey, deth.source.get()), (0x1111_1111, 0x13));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// The Q_Key, which must equal that of the receiving queue pair.
    pub qkey: u32,
    /// The queue pair that sent the datagram (SrcQP).
    pub source: Qpn,
}

impl Deth {
    /// The size in bytes.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Reader::new(bytes);
        let qkey = fields.u32();
        let _reserved = fields.u8();
        Self { qkey, source: fields.qpn() }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        Writer::new(bytes).u32(self.qkey).u8(0).u24(self.source.get());
    }
}
