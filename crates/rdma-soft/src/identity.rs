//! Who a device is: random at each installation, so that an address of another process, or of another
//! run, never names a local object.

use std::net::Ipv4Addr;

use rdma_types::{Gid, Guid};

use crate::address::GidEntry;
use crate::builder::Link;
use crate::gid_place::GidPlace;
use crate::random::SplitMix;

#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) guid: Guid,
    /// 0 on Ethernet.
    pub(crate) lid: u16,
    /// An empty place has the zero GID.
    pub(crate) gids: Vec<GidEntry>,
    /// What the places of `gids` were made from.
    places: Vec<GidPlace>,
}

impl Identity {
    pub(crate) fn random(link: Link, places: Vec<GidPlace>, rng: &mut SplitMix) -> Self {
        let random = rng.next_u64().to_be_bytes();
        // A locally administered, individual EUI-64 made from a MAC (RFC 4291, appendix A).
        let guid = Guid::from_bytes([
            0x02, random[1], random[2], 0xff, 0xfe, random[3], random[4], random[5],
        ]);
        let lid = match link {
            // Unicast LIDs are 1 to 0xbfff.
            Link::InfiniBand => 1 + (rng.below(0xbfff) & 0xffff) as u16,
            Link::Ethernet => 0,
        };
        let gids = table(&places, guid, rng);
        Self { guid, lid, gids, places }
    }

    /// Another one, with a GID table of the same shape.
    pub(crate) fn redrawn(&self, link: Link, rng: &mut SplitMix) -> Self {
        Self::random(link, self.places.clone(), rng)
    }

    pub(crate) fn has_gid(&self, entry: &GidEntry) -> bool {
        !entry.gid.is_zero() && self.gids.contains(entry)
    }
}

/// The addresses of one family are a random one and those that follow it, so that they differ.
fn table(places: &[GidPlace], guid: Guid, rng: &mut SplitMix) -> Vec<GidEntry> {
    // 240.0.0.0/4 is reserved (RFC 1112), 2001:db8::/32 is for documentation (RFC 3849): nothing real
    // has such an address.
    let ipv4 = 0xf000_0000 | rng.next_u32() & 0x07ff_ffff;
    let subnet = 0x2001_0db8_0000_0000 | u64::from(rng.next_u32());
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
    use rdma_types::GidType;

    use super::*;

    #[test]
    fn a_roce_port_has_four_gids_and_an_infiniband_port_a_lid() {
        let mut rng = SplitMix::new(1);
        let usual = |link, rng: &mut _| Identity::random(link, GidPlace::usual(link), rng);
        let roce = usual(Link::Ethernet, &mut rng);
        let kinds: Vec<_> = roce.gids.iter().map(|entry| entry.kind).collect();
        let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
        assert_eq!(kinds, [v1, v2, v1, v2]);
        assert!(roce.gids[..2].iter().all(|entry| entry.gid.is_link_local()));
        assert!(roce.gids[2..].iter().all(|entry| entry.gid.to_ipv4().unwrap().octets()[0] >= 240));
        assert_eq!(roce.lid, 0);
        let ib = usual(Link::InfiniBand, &mut rng);
        assert!((1..0xc000).contains(&ib.lid) && ib.gids.len() == 1);
        assert_ne!(ib.guid, roce.guid);
    }

    #[test]
    fn places_of_one_family_have_one_address_for_each_type_and_another_for_each_turn() {
        let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
        for place in [GidPlace::LinkLocal, GidPlace::Ipv4Mapped, GidPlace::Global] {
            let places = vec![place(v2), GidPlace::Empty, place(v1), place(v2), GidPlace::Empty];
            let identity = Identity::random(Link::Ethernet, places, &mut SplitMix::new(2));
            let gids: Vec<Gid> = identity.gids.iter().map(|entry| entry.gid).collect();
            assert_eq!((gids[0], gids[1], gids[4]), (gids[2], Gid::ZERO, Gid::ZERO));
            assert!(gids[3] != gids[0] && !gids[3].is_zero());
            assert_eq!(gids[0].is_link_local(), gids[3].is_link_local());
            assert_eq!(gids[0].is_ipv4_mapped(), gids[3].is_ipv4_mapped());
            assert!(!identity.has_gid(&identity.gids[1]), "an empty place is no address");
            let again = identity.redrawn(Link::Ethernet, &mut SplitMix::new(3));
            assert!(again.gids.len() == 5 && again.gids[0] != identity.gids[0]);
        }
    }
}
