//! The choice of a GID: by the peer, or by the program or operator.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rdma_mem::Gid;

use crate::endpoint::pair::shares_prefix;
use crate::environment;
use crate::error::Error;

/// Which GIDs of its port a queue pair may use.
///
/// # Examples
/// ```
/// use rdma_qp::{CompletionQueue, GidChoice, prelude::*};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::create(&context, 16)?;
/// let pd = context.allocate_pd()?;
/// let builder = || pd.create_qp().send_cq(&cq).recv_cq(&cq);
/// // The addresses of soft0 are from 240.0.0.0/4.
/// let own = builder().gid_choice(GidChoice::Network("240.0.0.0/4".parse().unwrap())).build()?;
/// assert!(own.endpoint().gids().iter().all(|own| own.gid.is_ipv4_mapped()));
/// builder().gid_choice(GidChoice::Network("192.0.2.0/24".parse().unwrap())).build().unwrap_err();
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidChoice {
    /// All of them. Both ends choose one pair from what their endpoints carry, by the first rule that fits:
    ///
    /// 1. the two addresses of the stream by which the ends met, if both are GIDs;
    /// 2. two addresses of one network, by the masks of their interfaces;
    /// 3. two addresses of the best type and class that both have: RoCE v2 before RoCE v1, IPv4 before global IPv6 before
    ///    link-local addresses.
    ///
    /// An address that both ends have counts only if their whole tables are equal. Of several pairs the one with the
    /// smaller addresses is taken.
    ///
    /// If the environment sets `RDMA_GID_INDEX` (a number) or `RDMA_GID_NETWORK` (such as `10.0.0.0/8`), it is that
    /// choice instead; the index goes before the network.
    #[default]
    ByPeer,
    /// The GID at this index of the port's table.
    Index(u8),
    /// Those that are in this network.
    Network(GidNetwork),
}

impl GidChoice {
    /// This choice, or what the environment says instead of [`ByPeer`](Self::ByPeer).
    pub(crate) fn or_of_environment(self) -> Result<Self, Error> {
        if self != Self::ByPeer {
            return Ok(self);
        }
        if let Some(index) = environment::parse("RDMA_GID_INDEX", "a number from 0 to 255")? {
            return Ok(Self::Index(index));
        }
        let network = environment::parse("RDMA_GID_NETWORK", "a network such as 10.0.0.0/8")?;
        Ok(network.map_or(Self::ByPeer, Self::Network))
    }
}

/// A network: an address and how many of its leading bits count. Its text is that of addresses, `10.0.0.0/8` or
/// `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidNetwork {
    address: IpAddr,
    length: u8,
}

impl GidNetwork {
    /// The network of an address. `None` if the length is above 32 of an IPv4 address, or above 128.
    #[must_use]
    pub const fn new(address: IpAddr, length: u8) -> Option<Self> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if length > longest { None } else { Some(Self { address, length }) }
    }

    /// Returns true if the GID is an address of this network. IPv4 addresses are GIDs of `::ffff:0:0/96`.
    #[must_use]
    pub fn contains(&self, gid: Gid) -> bool {
        let length = if self.address.is_ipv4() { 96 + self.length } else { self.length };
        shares_prefix(gid_of(self.address), gid, length)
    }
}

/// A text that is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no network: write an address and the length of its prefix, such as 10.0.0.0/8 or fd00::/8"
)]
pub struct ParseGidNetworkError(());

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

/// The GID that an address has.
pub(crate) fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid::from_ipv4(address),
        IpAddr::V6(address) => Gid::from(address),
    }
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
