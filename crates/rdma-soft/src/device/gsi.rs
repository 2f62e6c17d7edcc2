//! The general services interface: the management datagrams (MADs) that a device exchanges with other devices of a
//! simulated network, or with other hosts.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_proto::cm::Transmit;
use rdma_proto::cm::wire::MAD_LEN;
use rdma_types::{Gid, GidType};

use crate::address::{Address, GidEntry};
use crate::device::Device;
use crate::device::network::Network;
use crate::engine::Refusal;
use crate::engine::wire::Outlet;
use crate::fabric::clock::Time;
use crate::link::Link;

/// Returns a file from which MADs that arrive at a device are read. Earlier files no longer receive any.
pub(crate) fn open_mads(device: &Device) -> Result<OwnedFd, Refusal> {
    let is_simulated = device.subnet.links.is_some() && device.link == Link::Ethernet;
    if !is_simulated && device.networks().is_empty() {
        return Err(Refusal::Unsupported);
    }
    device.mads.open().map_err(Refusal::without_files)
}

/// Returns the local address from which MADs to an address are sent: the source address of the host's route. If the
/// device does not listen there, returns its first address of the same IP version, if that reaches the destination.
pub(crate) fn mad_source(device: &Device, remote: Gid) -> Result<Gid, Refusal> {
    if device.subnet.links.is_some() {
        return simulated_source(device, remote);
    }
    let of_version = |network: &&Arc<dyn Network>| {
        network.address().gid.is_ipv4_mapped() == remote.is_ipv4_mapped()
    };
    let networks = device.networks();
    let first = networks.iter().find(of_version).ok_or(Refusal::Unsupported)?;
    let mut sources = networks.iter().filter(of_version);
    if let Some(network) = sources.find(|network| network.is_source_to(remote)) {
        return Ok(network.address().gid);
    }
    first.reach(&at(remote)).map(|()| first.address().gid)
}

/// Returns the first address of a device whose packets reach an address of a simulated network.
fn simulated_source(device: &Device, remote: Gid) -> Result<Gid, Refusal> {
    let reaches = |entry: &&GidEntry| {
        entry.kind == GidType::ROCE_V2
            && !entry.gid.is_zero()
            && entry.gid.is_ipv4_mapped() == remote.is_ipv4_mapped()
            && entry.gid.is_link_local() == remote.is_link_local()
    };
    let own = device.identity.gids.iter().find(reaches).ok_or(Refusal::Unsupported)?;
    device.subnet.at(device.link, &at(remote)).ok_or(Refusal::Unreachable)?;
    Ok(own.gid)
}

/// Sends a MAD from a local address that leads to other devices of a simulated network, or to other hosts.
pub(crate) fn send_mad(
    device: &'static Device,
    source: Gid,
    remote: Gid,
    mad: &[u8; MAD_LEN],
) -> Result<(), Refusal> {
    let outlet = if device.subnet.links.is_some() {
        let own = at(source);
        if device.link != Link::Ethernet || !device.has_address(&own) {
            return Err(Refusal::Invalid);
        }
        let there = device.subnet.at(device.link, &at(remote));
        there.map_or(Outlet::Nowhere, |there| Outlet::Inbox(&**there.inbox(Transmit::QPN.get())))
    } else if device.networks().is_empty() {
        return Err(Refusal::Unsupported);
    } else {
        let mut networks = device.networks().iter();
        let network = networks.find(|network| network.address().gid == source);
        Outlet::Carrier(network.ok_or(Refusal::Invalid)?.outlet())
    };
    device.mads.send(device, &outlet, (source, remote), mad);
    Ok(())
}

/// Makes the file of [`open_mads`] readable at a time, unless an earlier one is set.
pub(crate) fn set_alarm(device: &'static Device, time: Time) -> Result<(), Refusal> {
    if device.fabric.simulation.is_none() {
        return Err(Refusal::Unsupported);
    }
    if !device.mads.is_open() {
        return Err(Refusal::Invalid);
    }
    device.mads.set_alarm(device.fabric, time);
    Ok(())
}

fn at(gid: Gid) -> Address {
    Address::Gid(GidEntry { gid, kind: GidType::ROCE_V2 })
}
