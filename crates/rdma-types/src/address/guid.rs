//! Globally unique identifiers: the 64-bit names of devices and ports.

use core::fmt;
use core::str::FromStr;

use crate::error::ParseGuidError;

/// A globally unique identifier (GUID): the EUI-64 name of a device or port.
///
/// C passes GUIDs as `__be64`, whose memory is [the bytes](Self::to_bytes) in network order; see
/// [`from_be`](Self::from_be). IBTA vol 1, section 4.1.
///
/// # Examples
///
/// ```
/// use rdma_types::Guid;
///
/// let guid: Guid = "0011:2233:4455:6677".parse()?;
/// assert_eq!(guid.oui(), 0x001122);
/// assert_eq!(guid.to_string(), "0011:2233:4455:6677");
/// # Ok::<(), rdma_types::ParseGuidError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Guid([u8; 8]);

impl Guid {
    /// Creates a GUID from its bytes in network order.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes in network order.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }

    /// Borrows the bytes, which are in network order.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// Creates a GUID from a `__be64`, which `ibv_get_device_guid` returns and
    /// `ibv_device_attr.node_guid` holds.
    #[inline]
    pub const fn from_be(raw: u64) -> Self {
        Self(raw.to_ne_bytes())
    }

    /// Returns the GUID as a C `__be64`.
    #[inline]
    pub const fn to_be(self) -> u64 {
        u64::from_ne_bytes(self.0)
    }

    /// Creates a GUID from its value. The first byte is the most significant one.
    #[inline]
    pub const fn from_u64(value: u64) -> Self {
        Self(value.to_be_bytes())
    }

    /// Returns the value. The first byte is the most significant one.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        u64::from_be_bytes(self.0)
    }

    /// Returns the organizationally unique identifier of the manufacturer: the upper 24 bits.
    #[inline]
    pub const fn oui(self) -> u32 {
        let [a, b, c, ..] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }

    /// Returns true if this is the all-zero GUID, which identifies no device or port.
    #[inline]
    pub const fn is_reserved(self) -> bool {
        self.to_u64() == 0
    }
}

/// Equivalent to [`Guid::from_u64`]. For a C `__be64`, use [`Guid::from_be`].
impl From<u64> for Guid {
    #[inline]
    fn from(value: u64) -> Self {
        Self::from_u64(value)
    }
}

impl From<Guid> for u64 {
    #[inline]
    fn from(guid: Guid) -> Self {
        guid.to_u64()
    }
}

impl FromStr for Guid {
    type Err = ParseGuidError;

    /// Parses four groups of four hex digits, the format that [`Display`](fmt::Display) and sysfs
    /// use.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut value = 0;
        let mut groups = text.split(':');
        for _ in 0..4 {
            let group = groups.next().ok_or(ParseGuidError)?;
            // `from_str_radix` alone would accept a sign.
            if group.len() != 4 || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(ParseGuidError);
            }
            let digits = u64::from_str_radix(group, 16).map_err(|_| ParseGuidError)?;
            value = value << 16 | digits;
        }
        if groups.next().is_some() { Err(ParseGuidError) } else { Ok(Self::from_u64(value)) }
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.0;
        write!(f, "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}:{h:02x}{i:02x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

#[cfg(feature = "serde")]
mod serialised {
    use core::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Guid;

    impl Serialize for Guid {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if serializer.is_human_readable() {
                serializer.collect_str(self)
            } else {
                self.0.serialize(serializer)
            }
        }
    }

    impl<'de> Deserialize<'de> for Guid {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            if deserializer.is_human_readable() {
                deserializer.deserialize_str(Text)
            } else {
                <[u8; 8]>::deserialize(deserializer).map(Self)
            }
        }
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Guid;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a GUID such as 0011:2233:4455:6677")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Guid, E> {
            text.parse().map_err(E::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    const BYTES: [u8; 8] = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77];

    #[test]
    fn every_form_is_the_same_guid() {
        let guid = Guid::from_bytes(BYTES);
        assert_eq!(guid, Guid::from_u64(0x0011_2233_4455_6677));
        assert_eq!(guid, Guid::from_be(0x0011_2233_4455_6677_u64.to_be()));
        assert_eq!(guid.to_be().to_ne_bytes(), BYTES);
        assert_eq!(format!("{guid} {guid:?}"), "0011:2233:4455:6677 Guid(0011:2233:4455:6677)");
        assert_eq!("0011:2233:4455:6677".parse(), Ok(guid));
    }

    #[test]
    fn oui_is_the_first_three_bytes() {
        assert_eq!(Guid::from_u64(0xf452_1400_0000_0001).oui(), 0xf4_5214);
    }

    #[test]
    fn only_zero_is_reserved() {
        assert!(Guid::default().is_reserved());
        assert!(!Guid::from_u64(1).is_reserved());
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in [
            "",
            "0011:2233:4455",
            "0011:2233:4455:6677:8899",
            "0011:2233:4455:667",
            "0011:2233:4455:66777",
            "0011:2233:4455:+677",
            "0011:2233:4455:66g7",
            "0011223344556677",
            "0011:2233:4455:é77",
        ] {
            assert_eq!(text.parse::<Guid>(), Err(ParseGuidError), "{text:?}");
        }
    }
}
