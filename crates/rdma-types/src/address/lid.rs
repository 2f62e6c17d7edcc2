//! Local identifiers: the 16-bit addresses within an InfiniBand subnet.

use core::fmt;

/// A local identifier (LID): a port's address within its InfiniBand subnet, assigned by the subnet
/// manager (`ibv_port_attr.lid`). Ethernet ports have none and report 0. IBTA vol 1, section 4.1.3.
///
/// # Examples
///
/// ```
/// use rdma_types::Lid;
///
/// assert!(Lid::new(7).is_unicast());
/// assert!(!Lid::NONE.is_unicast());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
#[repr(transparent)]
pub struct Lid(u16);

impl Lid {
    /// Reserved: the port has no LID.
    pub const NONE: Self = Self(0);

    /// Creates a LID from its number in host order.
    #[inline]
    pub const fn new(lid: u16) -> Self {
        Self(lid)
    }

    /// Returns the number in host order.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns true if this is a unicast LID (`0x0001..=0xbfff`), that is, the address of one port.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        matches!(self.0, 0x0001..=0xbfff)
    }

    /// Returns true if this is the address of a multicast group (`0xc000..=0xfffe`).
    ///
    /// ```
    /// use rdma_types::Lid;
    ///
    /// assert!(Lid::new(0xc001).is_multicast());
    /// ```
    #[inline]
    pub const fn is_multicast(self) -> bool {
        matches!(self.0, 0xc000..=0xfffe)
    }
}

impl From<u16> for Lid {
    #[inline]
    fn from(lid: u16) -> Self {
        Self(lid)
    }
}

impl From<Lid> for u16 {
    #[inline]
    fn from(lid: Lid) -> Self {
        lid.0
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unicast_ends_where_multicast_begins() {
        let unicast = [0, 1, 0xbfff, 0xc000, 0xffff].map(|lid| Lid::new(lid).is_unicast());
        assert_eq!(unicast, [false, true, true, false, false]);
        let multicast = [0, 0xbfff, 0xc000, 0xfffe, 0xffff].map(|lid| Lid::new(lid).is_multicast());
        assert_eq!(multicast, [false, false, true, true, false], "the last is the permissive LID");
    }
}
