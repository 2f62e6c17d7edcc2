//! RETH: the address and the length of a WRITE or a READ.

use rdma_types::Rkey;

use crate::wire::bytes::{Reader, Writer};

/// The RDMA extended transport header (IBTA section 9.3): the range of remote memory that a WRITE or a READ accesses.
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::Reth;
///
/// let bytes = [0, 0, 0x55, 0x59, 0x3f, 0x9d, 0x90, 0x40, 0, 0, 0x02, 0xf4, 0, 0, 0x04, 0x06];
/// let reth = Reth::parse(&bytes);
/// assert_eq!((reth.va, reth.length), (0x5559_3f9d_9040, 1030));
/// assert_eq!(reth.rkey, 0x2f4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// The virtual address (VA) of the first byte.
    pub va: u64,
    /// The key of the memory.
    pub rkey: Rkey,
    /// The length of the whole message in bytes (DMALen), regardless of the number of packets.
    pub length: u32,
}

impl Reth {
    /// The size in bytes.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Reader::new(bytes);
        Self { va: fields.u64(), rkey: fields.rkey(), length: fields.u32() }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        Writer::new(bytes).u64(self.va).u32(self.rkey.get()).u32(self.length);
    }
}
