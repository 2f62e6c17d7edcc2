//! Global identifiers: the 128-bit addresses of ports.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use super::guid::Guid;
use crate::error::ParseGidError;
use crate::macros::open_enum;

/// A global identifier (GID): a port's 128-bit address, in the form of an IPv6 address.
///
/// Each port has a table of GIDs. On RoCE, an entry represents an IP address of the network
/// interface; an IPv4 address is [mapped](Self::is_ipv4_mapped). On InfiniBand, an entry consists
/// of the subnet prefix and the port's GUID. C's type is `union ibv_gid`. IBTA vol 1, section
/// 4.1.1.
///
/// A GID is written as an IPv6 address. Parsing accepts every IPv6 notation, including the eight
/// full groups that sysfs prints.
///
/// # Examples
///
/// ```
/// use rdma_types::Gid;
///
/// let gid: Gid = "0000:0000:0000:0000:0000:ffff:c000:0201".parse()?;
/// assert!(gid.is_ipv4_mapped());
/// assert_eq!(gid.to_string(), "::ffff:192.0.2.1");
/// assert_eq!(gid.to_ipv4().unwrap().to_string(), "192.0.2.1");
/// # Ok::<(), rdma_types::ParseGidError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Ipv6Addr", into = "Ipv6Addr"))]
#[repr(transparent)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The all-zero GID, which marks an unused entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The subnet prefix `fe80::/64`, which InfiniBand ports use until a subnet manager assigns
    /// another one.
    pub const LINK_LOCAL_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Creates a GID from its bytes in network order, the order of `ibv_gid.raw` and of packets.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes in network order.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Borrows the bytes, which are in network order.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Creates a port's GID from its subnet prefix (in host order) and its GUID.
    #[inline]
    pub const fn from_parts(subnet_prefix: u64, interface_id: Guid) -> Self {
        let number = ((subnet_prefix as u128) << 64) | interface_id.to_u64() as u128;
        Self(number.to_be_bytes())
    }

    /// Returns the GID that represents an IPv4 address on RoCE: `::ffff:a.b.c.d`.
    #[inline]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// Returns the GID as an IPv6 address. This works for every GID.
    #[inline]
    pub const fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0))
    }

    /// Returns the IPv4 address that this GID represents, if it [is mapped](Self::is_ipv4_mapped).
    #[inline]
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }

    /// Returns the upper half: the subnet prefix, in host order.
    #[inline]
    pub const fn subnet_prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// Returns the lower half: the interface identifier. On InfiniBand it is the port's GUID.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the lower half is meant
    pub const fn interface_id(self) -> Guid {
        Guid::from_u64(u128::from_be_bytes(self.0) as u64)
    }

    /// Returns true if this is the all-zero GID, which marks an unused table entry.
    #[inline]
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Returns true if this GID is link-local (`fe80::/10`), that is, valid only on its own link.
    ///
    /// A RoCE device refuses to connect a link-local GID to one that is not link-local.
    #[inline]
    pub const fn is_link_local(self) -> bool {
        self.to_ipv6().is_unicast_link_local()
    }

    /// Returns true if this GID represents an IPv4 address: `::ffff:a.b.c.d`. RoCEv2 uses IPv4
    /// packets for such a GID.
    #[inline]
    pub const fn is_ipv4_mapped(self) -> bool {
        self.to_ipv4().is_some()
    }

    /// Returns true if this GID is the address of a multicast group. Multicast GIDs are `ff00::/8`
    /// (IBTA vol 1, section 4.1.1). On RoCE, an IPv4 group has the form `::ffff:224.0.0.0/100`.
    ///
    /// ```
    /// use rdma_types::Gid;
    ///
    /// let groups: [Gid; 2] = ["ff0e::1".parse()?, "::ffff:239.255.0.1".parse()?];
    /// assert!(groups.iter().all(|group| group.is_multicast()));
    /// assert!(!"::ffff:192.0.2.1".parse::<Gid>()?.is_multicast());
    /// # Ok::<(), rdma_types::ParseGidError>(())
    /// ```
    #[inline]
    pub const fn is_multicast(self) -> bool {
        match self.to_ipv4() {
            Some(address) => address.is_multicast(),
            None => self.0[0] == 0xff,
        }
    }
}

impl From<[u8; 16]> for Gid {
    #[inline]
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl From<Gid> for [u8; 16] {
    #[inline]
    fn from(gid: Gid) -> Self {
        gid.0
    }
}

impl From<Ipv6Addr> for Gid {
    #[inline]
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    #[inline]
    fn from(gid: Gid) -> Self {
        gid.to_ipv6()
    }
}

/// Equivalent to [`Gid::from_ipv4`].
impl From<Ipv4Addr> for Gid {
    #[inline]
    fn from(address: Ipv4Addr) -> Self {
        Self::from_ipv4(address)
    }
}

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Ipv6Addr>().map(Self::from).map_err(|_| ParseGidError)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

open_enum! {
    /// The packet format that a GID selects (`enum ibv_gid_type`). Two ports can communicate only
    /// through GIDs of the same type.
    #[doc(alias = "ibv_gid_type")]
    GidType(u32), "GID type" {
        /// InfiniBand.
        IB = 0, "IB";
        /// RoCE version 1: InfiniBand packets directly in Ethernet frames, not routable.
        ROCE_V1 = 1, "RoCE v1";
        /// RoCE version 2: UDP port 4791, routable.
        ROCE_V2 = 2, "RoCE v2";
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn ipv4_mapped_gid_converts_both_ways() {
        let address = Ipv4Addr::new(10, 1, 2, 3);
        let gid = Gid::from(address);
        assert_eq!(gid.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(gid.to_ipv4(), Some(address));
        assert_eq!(format!("{gid} {gid:?}"), "::ffff:10.1.2.3 Gid(::ffff:10.1.2.3)");
        assert!(!gid.is_link_local() && !gid.is_zero());
    }

    #[test]
    fn only_the_mapped_prefix_is_ipv4() {
        for text in ["::10.1.2.3", "::fffe:10.1.2.3", "1::ffff:10.1.2.3", "fe80::1", "::"] {
            let gid: Gid = text.parse().unwrap();
            assert!(!gid.is_ipv4_mapped(), "{text}");
        }
    }

    #[test]
    fn link_local_is_the_first_ten_bits() {
        for (text, expected) in
            [("fe80::1", true), ("febf::1", true), ("fec0::1", false), ("fe40::", false)]
        {
            assert_eq!(text.parse::<Gid>().unwrap().is_link_local(), expected, "{text}");
        }
    }

    #[test]
    fn groups_are_those_of_either_family() {
        for (text, expected) in [
            ("ff00::", true),
            ("ff02::1", true),
            ("ff0e::ffff:10.1.2.3", true),
            ("fe80::1", false),
            ("::ffff:223.255.255.255", false),
            ("::ffff:224.0.0.0", true),
            ("::ffff:239.255.255.255", true),
            ("::ffff:240.0.0.0", false),
            ("::224.0.0.1", false),
            ("::", false),
        ] {
            assert_eq!(text.parse::<Gid>().unwrap().is_multicast(), expected, "{text}");
        }
    }

    #[test]
    fn parts_are_the_halves() {
        let guid = Guid::from_u64(0x0002_c903_0012_3456);
        let gid = Gid::from_parts(Gid::LINK_LOCAL_PREFIX, guid);
        assert_eq!(gid.to_string(), "fe80::2:c903:12:3456");
        assert_eq!((gid.subnet_prefix(), gid.interface_id()), (Gid::LINK_LOCAL_PREFIX, guid));
    }

    #[test]
    fn zero_is_the_default_and_unused() {
        assert_eq!(Gid::default(), Gid::ZERO);
        assert!(Gid::ZERO.is_zero());
        assert!(!"::1".parse::<Gid>().unwrap().is_zero());
    }

    #[test]
    fn text_that_is_no_address_is_refused() {
        for text in ["", "10.0.0.1", "fe80", "fe80::1%eth0", "fe80::12345", "[fe80::1]", " ::1"] {
            assert_eq!(text.parse::<Gid>(), Err(ParseGidError), "{text:?}");
        }
        assert!(ParseGidError.to_string().contains("::ffff:192.0.2.1"));
    }

    #[test]
    fn gid_types_have_the_numbers_of_verbs_h() {
        assert_eq!([GidType::IB, GidType::ROCE_V1, GidType::ROCE_V2].map(GidType::raw), [0, 1, 2]);
        assert_eq!(
            format!("{} {:?}", GidType::ROCE_V2, GidType::ROCE_V2),
            "RoCE v2 GidType::ROCE_V2"
        );
    }

    #[test]
    fn unknown_gid_type_is_data() {
        let newer = GidType::from_raw(77);
        assert_eq!((newer.raw(), newer.name()), (77, None));
        assert_eq!(format!("{newer}, {newer:?}"), "unknown GID type 77, GidType(77)");
    }
}
