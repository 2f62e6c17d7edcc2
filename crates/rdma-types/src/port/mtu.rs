//! Path MTUs.

use core::fmt;

use crate::macros::code;

/// A path MTU: the maximum payload of one packet (`enum ibv_mtu`). IBTA vol 1, table 19.
///
/// # Examples
///
/// ```
/// use rdma_types::Mtu;
///
/// let path = Mtu::MTU1024.min(Mtu::MTU4096);
/// assert_eq!((path.bytes(), path.code()), (1024, 3));
/// assert_eq!(Mtu::from_bytes(1500), None);
/// ```
#[doc(alias = "ibv_mtu")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u8", into = "u8"))]
pub struct Mtu(u8);

code!(Mtu, "MTU code", 1..=5);

impl Mtu {
    /// 256 bytes.
    pub const MTU256: Self = Self(1);
    /// 512 bytes.
    pub const MTU512: Self = Self(2);
    /// 1024 bytes, which fit into an ordinary Ethernet frame of 1500 bytes.
    pub const MTU1024: Self = Self(3);
    /// 2048 bytes.
    pub const MTU2048: Self = Self(4);
    /// 4096 bytes.
    pub const MTU4096: Self = Self(5);

    /// Returns the MTU of exactly `bytes` bytes, or `None` if that is not an MTU.
    #[inline]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::MTU256),
            512 => Some(Self::MTU512),
            1024 => Some(Self::MTU1024),
            2048 => Some(Self::MTU2048),
            4096 => Some(Self::MTU4096),
            _ => None,
        }
    }

    /// Returns the payload of a full packet, in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128 << self.0
    }
}

impl fmt::Display for Mtu {
    /// Writes the number of bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl fmt::Debug for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mtu({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn codes_and_bytes_agree() {
        let sizes = [256, 512, 1024, 2048, 4096];
        for (code, bytes) in (1..).zip(sizes) {
            let mtu = Mtu::from_code(code).unwrap();
            assert_eq!((mtu.bytes(), mtu.code(), u8::from(mtu)), (bytes, code, code));
            assert_eq!(Mtu::from_bytes(bytes), Some(mtu));
        }
        assert_eq!(format!("{0} {0:?}", Mtu::MTU2048), "2048 Mtu(2048)");
    }

    #[test]
    fn other_codes_and_sizes_are_refused() {
        for code in [0, 6, u8::MAX] {
            assert_eq!(Mtu::from_code(code), None);
        }
        for bytes in [0, 128, 1500, 8192] {
            assert_eq!(Mtu::from_bytes(bytes), None);
        }
        let error = Mtu::try_from(6).unwrap_err().to_string();
        assert_eq!(error, "MTU code 6 is out of range: 1 to 5 are allowed");
    }

    #[test]
    fn ordered_by_size() {
        assert!(Mtu::MTU256 < Mtu::MTU512 && Mtu::MTU2048 < Mtu::MTU4096);
    }
}
