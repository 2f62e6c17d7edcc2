//! IETH: the key that a SEND invalidates.

use rdma_types::Rkey;

/// The invalidate extended transport header (IBTA section 9.3).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::Ieth;
///
/// assert_eq!(Ieth::parse(&[0x08, 0, 0x01, 0x67]).rkey, 0x0800_0167);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth {
    /// The key that the receiver must invalidate.
    pub rkey: Rkey,
}

impl Ieth {
    /// The size in bytes.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { rkey: Rkey::new(u32::from_be_bytes(*bytes)) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.rkey.get().to_be_bytes();
    }
}
