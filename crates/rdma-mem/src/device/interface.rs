//! The networks that GIDs belong to, from the masks of the host's interfaces.

use std::net::{IpAddr, Ipv6Addr};

use rdma_sys::{InterfaceAddress, interface_addresses};
use rdma_types::Gid;

use crate::device::gid::GidEntry;

/// Adds the prefix length to each GID that is an address of an interface.
pub(crate) fn add_prefix_lengths(table: &mut [GidEntry]) {
    if !table.iter().any(|entry| can_be_of_an_interface(entry.gid)) {
        return;
    }
    // Without the list, every length stays unknown, as for an interface in another namespace.
    let Ok(interfaces) = interface_addresses() else { return };
    let networks: Vec<_> = interfaces.iter().filter_map(network).collect();
    for entry in table {
        let lengths = networks.iter().filter(|(gid, _)| *gid == entry.gid);
        // If two interfaces have the same address, use the longer prefix: it covers fewer
        // addresses.
        entry.prefix_length = lengths.map(|&(_, length)| length).max();
    }
}

/// Returns false for the kinds of address that software devices have: reserved (240.0.0.0/4), for
/// documentation (2001:db8::/32), or link-local. If a table contains no others, the interface list
/// is not read, and link-local addresses of a NIC have no prefix length.
fn can_be_of_an_interface(gid: Gid) -> bool {
    match gid.to_ipv4() {
        Some(address) => address.octets()[0] < 240,
        None => !gid.is_link_local() && gid.subnet_prefix() >> 32 != 0x2001_0db8,
    }
}

fn network(interface: &InterfaceAddress) -> Option<(Gid, u8)> {
    Some((gid_of(interface.address?.ip()), length_of(interface.mask?)?))
}

fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid::from_ipv4(address),
        IpAddr::V6(address) => Gid::from(address),
    }
}

/// Returns a mask's length as a GID prefix; `None` if the mask is not contiguous.
fn length_of(mask: IpAddr) -> Option<u8> {
    let mask = match mask {
        IpAddr::V4(mask) => u128::from(mask.to_bits()) | !u128::from(u32::MAX),
        IpAddr::V6(mask) => Ipv6Addr::to_bits(mask),
    };
    let ones = mask.leading_ones();
    (mask.count_ones() == ones).then_some(u8::try_from(ones).ok()?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rdma_types::GidType;

    use super::*;

    fn entry(gid: &str) -> GidEntry {
        GidEntry {
            port: 1,
            index: 0,
            gid: gid.parse().unwrap(),
            gid_type: GidType::ROCE_V2,
            netdev_index: None,
            prefix_length: None,
        }
    }

    #[test]
    fn masks_become_lengths_of_128_bits() {
        let lengths = ["255.255.255.0", "255.255.255.255", "0.0.0.0", "255.0.255.0"]
            .map(|mask| length_of(mask.parse().unwrap()));
        assert_eq!(lengths, [Some(120), Some(128), Some(96), None]);
        assert_eq!(length_of("ffff:ffff:ffff:ffff::".parse().unwrap()), Some(64));
    }

    #[test]
    fn an_address_of_the_host_has_the_prefix_of_its_interface() {
        let has_loopback = interface_addresses()
            .unwrap()
            .iter()
            .filter_map(network)
            .any(|(gid, _)| gid == Gid::from_ipv4(Ipv4Addr::LOCALHOST));
        let mut table = [entry("::ffff:127.0.0.1"), entry("::ffff:192.0.2.77"), entry("fe80::1")];
        add_prefix_lengths(&mut table);
        assert_eq!(table[0].prefix_length, has_loopback.then_some(104));
        assert_eq!(table[1].prefix_length, None, "an address for documentation");
    }
}
