//! The networks that GIDs belong to, from the masks of the host's interfaces.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma_sys::{Errno, InterfaceAddress, interface_addresses};
use rdma_types::Gid;

use crate::device::gid::GidEntry;

/// The time during which the masks of the interfaces are not read again. Queue pairs that are created together share a
/// list, and programs see a change of the network soon.
const CURRENT: Duration = Duration::from_millis(100);

/// The prefix lengths of a context's GIDs. Listing the interfaces takes a dozen system calls, so the lengths are kept
/// while the table has the same GIDs, for at most [`CURRENT`].
#[derive(Debug, Default)]
pub(crate) struct Networks(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    read_at: Instant,
    /// The GIDs of the table, in its order, with their prefix lengths.
    lengths: Vec<(Gid, Option<u8>)>,
}

impl Networks {
    /// Adds the prefix length to each GID that is an address of an interface.
    pub(crate) fn add_prefix_lengths(&self, table: &mut [GidEntry]) {
        self.add_at(Instant::now(), table, interface_addresses);
    }

    fn add_at(
        &self,
        now: Instant,
        table: &mut [GidEntry],
        list: impl FnOnce() -> Result<Vec<InterfaceAddress>, Errno>,
    ) {
        if !table.iter().any(|entry| can_be_of_an_interface(entry.gid)) {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let current = known.take().filter(|known| known.is_current(now, table));
        // Without the list, every length stays unknown, as for an interface in another namespace.
        *known = current.or_else(|| Some(Known::new(now, table, &list().ok()?)));
        let lengths = known.iter().flat_map(|known| &known.lengths);
        for (entry, &(_, length)) in table.iter_mut().zip(lengths) {
            entry.prefix_length = length;
        }
    }
}

impl Known {
    fn new(read_at: Instant, table: &[GidEntry], interfaces: &[InterfaceAddress]) -> Self {
        let networks: Vec<_> = interfaces.iter().filter_map(network).collect();
        let length_of = |gid| {
            let lengths = networks.iter().filter(|(other, _)| *other == gid);
            // If two interfaces have the same address, use the longer prefix: it covers fewer addresses.
            (gid, lengths.map(|&(_, length)| length).max())
        };
        Self { read_at, lengths: table.iter().map(|entry| length_of(entry.gid)).collect() }
    }

    fn is_current(&self, now: Instant, table: &[GidEntry]) -> bool {
        let own = self.lengths.iter().map(|&(gid, _)| gid);
        now.saturating_duration_since(self.read_at) < CURRENT
            && own.eq(table.iter().map(|entry| entry.gid))
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
    #[cfg_attr(miri, ignore = "Miri has no getifaddrs")]
    fn an_address_of_the_host_has_the_prefix_of_its_interface() {
        let has_loopback = interface_addresses()
            .unwrap()
            .iter()
            .filter_map(network)
            .any(|(gid, _)| gid == Gid::from_ipv4(Ipv4Addr::LOCALHOST));
        let mut table = [entry("::ffff:127.0.0.1"), entry("::ffff:192.0.2.77"), entry("fe80::1")];
        Networks::default().add_prefix_lengths(&mut table);
        assert_eq!(table[0].prefix_length, has_loopback.then_some(104));
        assert_eq!(table[1].prefix_length, None, "an address for documentation");
    }

    /// Returns an interface that has one address.
    fn interface(address: &str, mask: &str) -> InterfaceAddress {
        let list = interface_addresses().unwrap();
        // The struct has no constructor, because the C library fills it in.
        let mut entry = list.first().cloned().unwrap();
        entry.address = Some((address.parse::<IpAddr>().unwrap(), 0).into());
        entry.mask = Some(mask.parse().unwrap());
        entry
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no getifaddrs")]
    fn a_changed_network_is_seen_at_once_with_other_gids_and_otherwise_after_a_time() {
        let (networks, start) = (Networks::default(), Instant::now());
        let lengths = |now, gids: &[&str], mask: Option<&str>| {
            let mut table: Vec<_> = gids.iter().map(|gid| entry(gid)).collect();
            networks.add_at(now, &mut table, || match mask {
                Some(mask) => Ok(vec![interface("10.0.0.1", mask), interface("10.9.0.1", mask)]),
                None => Err(Errno::EMFILE),
            });
            table.iter().map(|entry| entry.prefix_length).collect::<Vec<_>>()
        };
        let (one, two) = (["::ffff:10.0.0.1"], ["::ffff:10.0.0.1", "::ffff:10.9.0.1"]);
        assert_eq!(lengths(start, &one, Some("255.255.255.0")), [Some(120)]);
        // The list is not read again.
        let last = start + CURRENT - Duration::from_nanos(1);
        assert_eq!(lengths(last, &one, Some("255.255.0.0")), [Some(120)]);
        assert_eq!(lengths(last, &one, None), [Some(120)]);
        // Another GID is an address that was added, or removed.
        assert_eq!(lengths(last, &two, Some("255.0.0.0")), [Some(104), Some(104)]);
        assert_eq!(lengths(last, &one, Some("255.255.0.0")), [Some(112)]);
        // The same GIDs, after the time: the mask of an address was changed.
        let later = last + CURRENT;
        assert_eq!(lengths(later, &one, Some("255.255.255.0")), [Some(120)]);
        // A list that cannot be read leaves no earlier lengths.
        let latest = later + CURRENT;
        assert_eq!(lengths(latest, &one, None), [None]);
        assert_eq!(lengths(latest, &one, Some("255.0.0.0")), [Some(104)]);
    }
}
