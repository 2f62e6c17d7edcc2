//! Networks of GIDs.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rdma_mem::Gid;

/// A network: an address and the length of its prefix, written like `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidNetwork {
    address: IpAddr,
    length: u8,
}

impl GidNetwork {
    /// Creates a network from an address in it and the length of the prefix. `None` if the length is above 32 for an
    /// IPv4 address, or above 128 for an IPv6 address.
    #[must_use]
    pub const fn new(address: IpAddr, length: u8) -> Option<Self> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if length > longest { None } else { Some(Self { address, length }) }
    }

    /// Returns true if the GID is an address in this network. The GIDs of IPv4 addresses are in `::ffff:0:0/96`.
    #[must_use]
    pub fn contains(&self, gid: Gid) -> bool {
        let length = if self.address.is_ipv4() { 96 + self.length } else { self.length };
        shares_prefix(gid_of(self.address), gid, length)
    }
}

/// The error from parsing a text that is not a network.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a network: write an address and the length of its prefix, such as 10.0.0.0/8 or fd00::/8"
)]
pub struct ParseGidNetworkError(());

rdma_types::debug_messages!(struct ParseGidNetworkError(it));

impl FromStr for GidNetwork {
    type Err = ParseGidNetworkError;

    fn from_str(text: &str) -> Result<Self, ParseGidNetworkError> {
        let error = ParseGidNetworkError(());
        let (address, length) = text.split_once('/').ok_or(error)?;
        let address = address.parse().map_err(|_| error)?;
        Self::new(address, length.parse().map_err(|_| error)?).ok_or(error)
    }
}

impl fmt::Display for GidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Returns the GID that corresponds to an address.
pub(crate) fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid::from_ipv4(address),
        IpAddr::V6(address) => Gid::from(address),
    }
}

/// Returns true if the first `length` bits of two GIDs are equal.
pub(crate) fn shares_prefix(a: Gid, b: Gid, length: u8) -> bool {
    let differ = u128::from_be_bytes(a.to_bytes()) ^ u128::from_be_bytes(b.to_bytes());
    differ.leading_zeros() >= u32::from(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_text_of_addresses() {
        for text in ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8", "::/0"] {
            assert_eq!(text.parse::<GidNetwork>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/x", "fd00::/129", "10.0.0/8"] {
            let error = text.parse::<GidNetwork>().unwrap_err().to_string();
            assert!(error.contains("10.0.0.0/8"), "{text}: {error}");
        }
    }

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        let contains = |network: &str, gid: &str| {
            network.parse::<GidNetwork>().unwrap().contains(gid.parse().unwrap())
        };
        assert!(contains("10.1.0.0/16", "::ffff:10.1.2.3"));
        assert!(!contains("10.1.0.0/16", "::ffff:10.2.2.3"));
        assert!(contains("fd00::/8", "fd93::1") && !contains("fd00::/8", "fe80::1"));
        assert!(!contains("0.0.0.0/0", "fd93::1") && contains("::/0", "fd93::1"));
    }
}
