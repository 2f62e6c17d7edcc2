//! The choice of a GID: by comparison with the peer's, or by the program or operator.

use crate::environment;
use crate::error::Error;
use crate::gid_network::GidNetwork;

/// Selects the GIDs that a queue pair may use.
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
    /// All GIDs of the port. Both ends choose one pair from the GIDs of their endpoints, by the first rule that
    /// applies:
    ///
    /// 1. the two addresses of the stream over which the endpoints are exchanged, if both are GIDs and no NAT
    ///    translates them;
    /// 2. two addresses in the same network, according to the netmasks of their interfaces;
    /// 3. two addresses of the best type and class that both have: RoCE v2 before RoCE v1, IPv4 before global IPv6
    ///    before link-local addresses.
    ///
    /// An address that both ends have counts only if both ends use the same port. This is assumed if their tables are
    /// equal, or if one table is a subset of the other and no other pair is left. If several pairs are equally good,
    /// both ends choose the one with the smaller addresses.
    ///
    /// The environment variables `RDMA_GID_INDEX` (a number) and `RDMA_GID_NETWORK` (such as `10.0.0.0/8`) replace this
    /// choice. The index takes precedence over the network.
    #[default]
    ByPeer,
    /// The GID at this index of the port's table.
    Index(u8),
    /// The GIDs in this network.
    Network(GidNetwork),
}

impl GidChoice {
    /// Returns this choice. [`ByPeer`](Self::ByPeer) is replaced with the choice in the environment, if any.
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
