//! Partition keys.

use core::fmt;

/// A partition key (P_Key): a port's membership in a partition of its subnet. Two ports accept each other's packets if
/// their keys name the same partition and at least one of them is a full member. IBTA vol 1, section 10.9.
///
/// # Examples
///
/// ```
/// use rdma_types::Pkey;
///
/// let (full, limited) = (Pkey::new(0x8001), Pkey::new(0x0001));
/// assert_eq!(full.partition(), limited.partition());
/// assert!(full.is_full_member() && !limited.is_full_member());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
#[repr(transparent)]
pub struct Pkey(u16);

impl Pkey {
    /// Full membership in the default partition. Every port has this key unless the subnet manager
    /// assigns another one.
    pub const DEFAULT: Self = Self(0xffff);

    /// Creates a key from its number in host order.
    #[inline]
    pub const fn new(pkey: u16) -> Self {
        Self(pkey)
    }

    /// Returns the number in host order.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the 15 bits that name the partition.
    #[inline]
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Returns true if the port is a full member. A full member can communicate with all members, a
    /// limited member only with full members.
    #[inline]
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Returns true if this is an empty table entry, which names no partition.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.partition() == 0
    }
}

impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn the_high_bit_is_the_membership() {
        let keys = [0x0000, 0x8000, 0x0001, 0x8001, 0xffff].map(Pkey::new);
        assert_eq!(keys.map(Pkey::is_empty), [true, true, false, false, false]);
        assert_eq!(keys.map(Pkey::is_full_member), [false, true, false, true, true]);
        assert_eq!(keys.map(Pkey::partition), [0, 0, 1, 1, 0x7fff]);
        assert_eq!(format!("{}", Pkey::new(0x1)), "0x0001");
    }
}
