//! The networks through which a device reaches other hosts, and the management datagrams (MADs) that they carry.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_proto::cm::wire::MAD_LEN;
use rdma_types::{Gid, GidType};

use crate::address::{Address, GidEntry};
use crate::engine::Refusal;
use crate::engine::wire::Carrier;

/// The network from one address of a device to other hosts.
pub(crate) trait Network: Send + Sync + std::fmt::Debug {
    /// Returns the local address.
    fn address(&self) -> GidEntry;

    /// Checks that packets can be sent to an address.
    fn reach(&self, remote: &Address) -> Result<(), Refusal>;

    /// Returns the carrier for packets to other hosts.
    fn outlet(&self) -> Arc<dyn Carrier>;

    /// Joins and leaves multicast groups, so that the packets of exactly the device's groups are received. `newest` is
    /// the group that was added last.
    fn update_groups(&self, newest: Option<Gid>, has: &dyn Fn(Gid) -> bool) -> Result<(), Refusal>;

    /// Makes MADs that arrive at any address of the device readable from a new file.
    fn open_mads(&self) -> Result<OwnedFd, Refusal>;

    /// Returns true if the host's route to an address begins at the local address.
    fn is_source_to(&self, remote: Gid) -> bool;

    /// Sends a MAD. If the network has no space, the MAD is lost.
    fn send_mad(&self, remote: Gid, mad: &[u8; MAD_LEN]);
}

/// Returns a file from which MADs that arrive at a device are read. Earlier files no longer receive any.
pub(crate) fn open_mads(networks: &[Arc<dyn Network>]) -> Result<OwnedFd, Refusal> {
    networks.first().ok_or(Refusal::Unsupported)?.open_mads()
}

/// Returns the local address from which MADs to an address are sent: the source address of the host's route. If the
/// device does not listen there, returns its first address of the same IP version, if that reaches the destination.
pub(crate) fn mad_source(networks: &[Arc<dyn Network>], remote: Gid) -> Result<Gid, Refusal> {
    let of_version = |network: &&Arc<dyn Network>| {
        network.address().gid.is_ipv4_mapped() == remote.is_ipv4_mapped()
    };
    let first = networks.iter().find(of_version).ok_or(Refusal::Unsupported)?;
    let mut sources = networks.iter().filter(of_version);
    if let Some(network) = sources.find(|network| network.is_source_to(remote)) {
        return Ok(network.address().gid);
    }
    let to = Address::Gid(GidEntry { gid: remote, kind: GidType::ROCE_V2 });
    first.reach(&to).map(|()| first.address().gid)
}

/// Sends a MAD from a local address that leads to other hosts.
pub(crate) fn send_mad(
    networks: &[Arc<dyn Network>],
    source: Gid,
    remote: Gid,
    mad: &[u8; MAD_LEN],
) -> Result<(), Refusal> {
    if networks.is_empty() {
        return Err(Refusal::Unsupported);
    }
    let network = networks.iter().find(|network| network.address().gid == source);
    network.ok_or(Refusal::Invalid)?.send_mad(remote, mad);
    Ok(())
}
