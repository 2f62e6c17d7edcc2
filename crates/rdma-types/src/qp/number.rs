//! Queue pair numbers.

use crate::macros::number24;

/// A queue pair number (QPN), 24 bits: identifies a queue pair within its device (`ibv_qp.qp_num`).
///
/// # Examples
///
/// ```
/// use rdma_types::Qpn;
///
/// assert_eq!(Qpn::new(0x11).unwrap().get(), 0x11);
/// assert_eq!(Qpn::new(1 << 24), None);
/// assert_eq!(Qpn::masked(0xab00_0011).to_string(), "0x000011");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u32", into = "u32"))]
#[repr(transparent)]
pub struct Qpn(u32);

number24!(Qpn, "QPN");

impl Qpn {
    /// The destination of multicast packets; never a queue pair's own number.
    pub const MULTICAST: Self = Self::MAX;
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn more_than_24_bits_are_refused() {
        assert_eq!(Qpn::new(0xff_ffff), Some(Qpn::MAX));
        for number in [0x100_0000, u32::MAX] {
            assert_eq!(Qpn::new(number), None);
            assert_eq!(Qpn::try_from(number).unwrap_err().value(), number);
        }
        let error = Qpn::try_from(0x100_0000).unwrap_err();
        assert_eq!(error.to_string(), "QPN 16777216 is out of range: 0 to 16777215 are allowed");
    }

    #[test]
    fn printed_in_hex() {
        assert_eq!(format!("{0} {0:?}", Qpn::masked(0xab)), "0x0000ab Qpn(0x0000ab)");
    }
}
