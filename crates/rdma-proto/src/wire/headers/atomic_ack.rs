//! AtomicAckETH: the result of an atomic operation.

/// The atomic acknowledge extended transport header (IBTA section 9.3). It follows an
/// [`Aeth`](super::aeth::Aeth).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::AtomicAckEth;
///
/// assert_eq!(AtomicAckEth::parse(&[7, 6, 5, 4, 3, 2, 1, 0]).original, 0x0706_0504_0302_0100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// The word's value before the operation (OrigRemDt).
    pub original: u64,
}

impl AtomicAckEth {
    /// The size in bytes.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { original: u64::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.original.to_be_bytes();
    }
}
