//! The identity of a device. It is drawn at random at each installation, so that an address from another process or an
//! earlier run never refers to a local object. If several processes share a device, they derive its identity from the
//! properties on which they agree.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_types::{Gid, GidType, Guid};

use crate::address::GidEntry;
use crate::device::gid_place::GidPlace;
use crate::fabric::random::Random;
use crate::link::Link;

#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) guid: Guid,
    /// 0 on Ethernet.
    pub(crate) lid: u16,
    /// The entries of the GID table: one for each place, then the addresses of the host, then the loopback address. An empty
    /// entry has the zero GID.
    pub(crate) gids: Vec<GidEntry>,
    /// The number of times that the entries have moved by one index.
    moves: AtomicUsize,
    /// The places from which the first entries of `gids` were made.
    places: Vec<GidPlace>,
    /// Addresses of this host through which this process reaches other hosts, each with the index of its interface.
    own: Vec<(GidEntry, u32)>,
    /// The index of the loopback interface, if the device has an address there.
    loopback: Option<u32>,
    /// The entries of `gids` that are not in `own`.
    shared: Vec<GidEntry>,
    /// The source of random numbers for the identity. It is not used for secrets.
    random: Random,
}

impl Identity {
    pub(crate) fn drawn(link: Link, places: Vec<GidPlace>, random: Random) -> Self {
        let mut identity = Self {
            guid: Guid::from_u64(0),
            lid: 0,
            gids: Vec::new(),
            moves: AtomicUsize::new(0),
            places,
            own: Vec::new(),
            loopback: None,
            shared: Vec::new(),
            random,
        };
        identity.redraw(link);
        identity
    }

    /// Draws a new identity, with a GID table of the same shape.
    pub(crate) fn redraw(&mut self, link: Link) {
        let random = &mut self.random;
        let bytes = random.next_u64().to_be_bytes();
        // A locally administered, individual EUI-64 made from a MAC (RFC 4291, appendix A).
        self.guid =
            Guid::from_bytes([0x02, bytes[1], bytes[2], 0xff, 0xfe, bytes[3], bytes[4], bytes[5]]);
        self.lid = match link {
            Link::InfiniBand => 1 + (random.below(0x7fff) & 0x7fff) as u16,
            Link::Ethernet => 0,
        };
        self.shared = table(&self.places, self.guid, random);
        if self.loopback.is_some() {
            self.shared.push(of_loopback(random));
        }
        self.arrange();
    }

    /// Rebuilds the GID table from its parts.
    fn arrange(&mut self) {
        let (first, last) = self.shared.split_at(self.places.len());
        let own = self.own.iter().map(|(entry, _)| *entry);
        self.gids = first.iter().copied().chain(own).chain(last.iter().copied()).collect();
    }

    /// Moves each entry of the GID table to the next index, and the last one to index 0.
    pub(crate) fn move_gids(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how far each entry has moved from its place in `gids`.
    fn offset(&self) -> usize {
        self.moves.load(Ordering::Relaxed) % self.gids.len().max(1)
    }

    /// Returns the entries of the GID table in the current order of their indexes.
    pub(crate) fn table(&self) -> impl Iterator<Item = &GidEntry> {
        let (first, last) = self.gids.split_at(self.gids.len() - self.offset());
        last.iter().chain(first)
    }

    /// Returns the entry that now has this index in the GID table.
    pub(crate) fn entry(&self, index: usize) -> Option<&GidEntry> {
        self.table().nth(index)
    }

    /// Adds addresses of the host to the table, each with the index of its interface.
    #[cfg(not(loom))]
    pub(crate) fn add(&mut self, own: Vec<(GidEntry, u32)>) {
        self.own.extend(own);
        self.arrange();
    }

    /// Adds a loopback address as the last entry of the table.
    #[cfg(not(loom))]
    pub(crate) fn add_loopback(&mut self, interface: u32) {
        self.loopback = Some(interface);
        self.shared.push(of_loopback(&mut self.random));
        self.arrange();
    }

    /// Returns the addresses of this host through which this process reaches other hosts.
    pub(crate) fn own(&self) -> impl Iterator<Item = &GidEntry> {
        self.own.iter().map(|(entry, _)| entry)
    }

    /// Returns the addresses that are the same in all processes that share the device.
    #[cfg(not(loom))]
    pub(crate) fn shared(&self) -> &[GidEntry] {
        &self.shared
    }

    /// Returns the index of the interface to which a GID table entry belongs, or 0.
    pub(crate) fn interface(&self, index: usize) -> u32 {
        let count = self.gids.len();
        let place = (index < count).then(|| (index + count - self.offset()) % count);
        let behind = place.and_then(|place| place.checked_sub(self.places.len()));
        let own = behind.and_then(|index| self.own.get(index)).map(|(_, interface)| *interface);
        let last = behind == Some(self.own.len());
        own.or(self.loopback.filter(|_| last)).unwrap_or(0)
    }

    /// Redraws the identity for a device that several processes share, from random numbers that are the same in all of
    /// them. The LID is in the upper third of the unicast LIDs (1 to 0xbfff), where only shared devices have LIDs.
    #[cfg(not(loom))]
    pub(crate) fn become_shared(&mut self, link: Link, random: Random) {
        self.random = random;
        self.redraw(link);
        if link == Link::InfiniBand {
            self.lid = 0x8000 | self.lid & 0x3fff;
        }
    }

    /// Returns the places from which the GID table was made.
    #[cfg(not(loom))]
    pub(crate) fn places(&self) -> &[GidPlace] {
        &self.places
    }

    pub(crate) fn has_gid(&self, entry: &GidEntry) -> bool {
        !entry.gid.is_zero() && self.gids.contains(entry)
    }
}

/// Returns an address of the loopback interface, from the half of 127.0.0.0/8 where programs rarely listen.
fn of_loopback(random: &mut Random) -> GidEntry {
    const FIRST: u32 = 0x7f80_0000;
    // Excludes the network address and the broadcast address.
    let address = FIRST + 1 + random.below((1 << 23) - 2);
    GidEntry { gid: Gid::from_ipv4(Ipv4Addr::from_bits(address)), kind: GidType::ROCE_V2 }
}

/// Returns the GID table. The addresses of a family start at a random address and count up from there, so they differ.
fn table(places: &[GidPlace], guid: Guid, random: &mut Random) -> Vec<GidEntry> {
    // 240.0.0.0/4 is reserved (RFC 1112), and 2001:db8::/32 is for documentation (RFC 3849), so no real device has such
    // an address.
    let ipv4 = 0xf000_0000 | random.next_u32() & 0x07ff_ffff;
    let subnet = 0x2001_0db8_0000_0000 | u64::from(random.next_u32());
    let entry = |(n, &place): (usize, &GidPlace)| {
        let turn = places[..n].iter().filter(|&&other| other == place).count() as u64;
        let host = Guid::from_u64(guid.to_u64().wrapping_add(turn));
        let ipv4 = ipv4.wrapping_add((turn & 0xffff_ffff) as u32);
        let gid = match place {
            GidPlace::Empty => Gid::ZERO,
            GidPlace::LinkLocal(_) => Gid::from_parts(Gid::LINK_LOCAL_PREFIX, host),
            GidPlace::Ipv4Mapped(_) => Gid::from_ipv4(Ipv4Addr::from_bits(ipv4)),
            GidPlace::Global(_) => Gid::from_parts(subnet, host),
        };
        GidEntry { gid, kind: place.gid_type() }
    };
    places.iter().enumerate().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::random::{Purpose, Seed};

    fn drawn(link: Link, places: Vec<GidPlace>, seed: u8) -> Identity {
        Identity::drawn(link, places, Seed::new(seed).stream(Purpose::Identity))
    }

    #[test]
    fn a_roce_port_has_four_gids_and_an_infiniband_port_a_lid() {
        let usual = |link, seed| drawn(link, GidPlace::usual(link), seed);
        let roce = usual(Link::Ethernet, 1);
        let kinds: Vec<_> = roce.gids.iter().map(|entry| entry.kind).collect();
        let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
        assert_eq!(kinds, [v1, v2, v1, v2]);
        assert!(roce.gids[..2].iter().all(|entry| entry.gid.is_link_local()));
        assert!(roce.gids[2..].iter().all(|entry| entry.gid.to_ipv4().unwrap().octets()[0] >= 240));
        assert_eq!(roce.lid, 0);
        let ib = usual(Link::InfiniBand, 2);
        assert!((1..0xc000).contains(&ib.lid) && ib.gids.len() == 1);
        assert_ne!(ib.guid, roce.guid);
    }

    /// Addresses do not wrap around, and none is the broadcast address.
    #[test]
    fn drawn_addresses_have_room_for_later_ones() {
        for seed in 0..64 {
            let roce = drawn(Link::Ethernet, GidPlace::usual(Link::Ethernet), seed);
            let first = roce.gids[2].gid.to_ipv4().unwrap().octets()[0];
            assert!((240..248).contains(&first), "{first}");
        }
    }

    #[test]
    fn places_of_one_family_have_one_address_for_all_types_and_another_if_repeated() {
        let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
        for place in [GidPlace::LinkLocal, GidPlace::Ipv4Mapped, GidPlace::Global] {
            let places = vec![place(v2), GidPlace::Empty, place(v1), place(v2), GidPlace::Empty];
            let mut identity = drawn(Link::Ethernet, places, 2);
            let gids: Vec<Gid> = identity.gids.iter().map(|entry| entry.gid).collect();
            assert_eq!((gids[0], gids[1], gids[4]), (gids[2], Gid::ZERO, Gid::ZERO));
            assert!(gids[3] != gids[0] && !gids[3].is_zero());
            assert_eq!(gids[0].is_link_local(), gids[3].is_link_local());
            assert_eq!(gids[0].is_ipv4_mapped(), gids[3].is_ipv4_mapped());
            let of_documents = gids[0].subnet_prefix() >> 32 == 0x2001_0db8;
            assert_eq!(of_documents, identity.places[0] == GidPlace::Global(v2));
            assert!(!identity.has_gid(&identity.gids[1]), "an empty place has no address");
            identity.redraw(Link::Ethernet);
            assert!(identity.gids.len() == 5 && identity.gids[0].gid != gids[0]);
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn the_address_of_the_loopback_interface_is_last_and_drawn_with_the_others() {
        let usual = GidPlace::usual(Link::Ethernet);
        let mut identity = drawn(Link::Ethernet, usual.clone(), 3);
        let own = GidEntry { gid: "::ffff:192.0.2.1".parse().unwrap(), kind: GidType::ROCE_V2 };
        identity.add_loopback(1);
        identity.add(vec![(own, 7)]);
        let first = identity.gids.clone();
        assert_eq!((first.len(), first[4]), (6, own));
        assert_eq!(identity.shared(), [&first[..4], &first[5..]].concat());
        let interfaces: Vec<_> = (0..7).map(|index| identity.interface(index)).collect();
        assert_eq!(interfaces, [0, 0, 0, 0, 7, 1, 0]);
        identity.redraw(Link::Ethernet);
        assert_eq!((identity.gids.len(), identity.gids[4]), (6, own));
        let [before, after] =
            [first[5], identity.gids[5]].map(|entry| entry.gid.to_ipv4().unwrap());
        assert!(before != after && before.is_loopback() && after.is_loopback());
        assert!(before.octets()[1] >= 128 && identity.gids[5].kind == GidType::ROCE_V2);
        // Without a loopback address, the entry belongs to no interface.
        assert_eq!(drawn(Link::Ethernet, usual, 3).interface(4), 0);
    }
}
