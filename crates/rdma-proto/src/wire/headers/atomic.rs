//! AtomicETH: the memory and the operands of an atomic operation.

use rdma_types::Rkey;

use crate::wire::bytes::{Reader, Writer};

/// The atomic extended transport header (IBTA section 9.3).
///
/// # Examples
///
/// An addition of 1 to the word at 0x1000:
///
/// ```
/// use rdma_proto::wire::AtomicEth;
/// use rdma_types::Rkey;
///
/// let atomic = AtomicEth { va: 0x1000, rkey: Rkey::new(0x2f4), swap_or_add: 1, compare: 0 };
/// let mut bytes = [0; AtomicEth::LEN];
/// atomic.emit(&mut bytes);
/// assert_eq!(bytes[6..20], [0x10, 0, 0, 0, 0x02, 0xf4, 0, 0, 0, 0, 0, 0, 0, 1]);
/// assert_eq!(AtomicEth::parse(&bytes), atomic);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// The virtual address (VA) of the 8 bytes.
    pub va: u64,
    /// The key of the memory.
    pub rkey: Rkey,
    /// The value that a CmpSwap stores, or that a FetchAdd adds (SwapDt).
    pub swap_or_add: u64,
    /// The value that a CmpSwap expects (CmpDt).
    pub compare: u64,
}

impl AtomicEth {
    /// The size in bytes.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Reader::new(bytes);
        Self {
            va: fields.u64(),
            rkey: fields.rkey(),
            swap_or_add: fields.u64(),
            compare: fields.u64(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        Writer::new(bytes)
            .u64(self.va)
            .u32(self.rkey.get())
            .u64(self.swap_or_add)
            .u64(self.compare);
    }
}
