//! ImmDt: a word that a message carries in addition to its payload.

/// Immediate data (IBTA section 9.3), which appears in the receiver's completion.
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::ImmDt;
///
/// assert_eq!(ImmDt::parse(&[0xde, 0xad, 0xbe, 0xef]).immediate, 0xdead_beef);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmDt {
    /// The word, in host order.
    pub immediate: u32,
}

impl ImmDt {
    /// The size in bytes.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { immediate: u32::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.immediate.to_be_bytes();
    }
}
