//! Who a device is: random at each installation, so that an address of another process, or of another
//! run, never names a local object.

use std::net::Ipv4Addr;

use rdma_types::{Gid, Guid};

use crate::address::{GidEntry, GidKind};
use crate::builder::Link;
use crate::random::SplitMix;

#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) guid: Guid,
    /// 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) gids: Vec<GidEntry>,
}

impl Identity {
    pub(crate) fn random(link: Link, rng: &mut SplitMix) -> Self {
        let random = rng.next_u64().to_be_bytes();
        // A locally administered, individual EUI-64 made from a MAC (RFC 4291, appendix A).
        let guid = Guid::from_bytes([
            0x02, random[1], random[2], 0xff, 0xfe, random[3], random[4], random[5],
        ]);
        let link_local = Gid::from_parts(Gid::LINK_LOCAL_PREFIX, guid);
        match link {
            Link::InfiniBand => {
                // Unicast LIDs are 1 to 0xbfff.
                let lid = 1 + (rng.below(0xbfff) & 0xffff) as u16;
                let gids = vec![GidEntry { gid: link_local, kind: GidKind::Infiniband }];
                Self { guid, lid, gids }
            }
            Link::Ethernet => {
                // 240.0.0.0/4 is reserved (RFC 1112): nothing real has such an address.
                let [_, a, b, c] = rng.next_u32().to_be_bytes();
                let ipv4 = Gid::from_ipv4(Ipv4Addr::new(240 | random[0] & 7, a, b, c));
                let gids = [link_local, ipv4]
                    .into_iter()
                    .flat_map(|gid| [(gid, GidKind::RoceV1), (gid, GidKind::RoceV2)])
                    .map(|(gid, kind)| GidEntry { gid, kind })
                    .collect();
                Self { guid, lid: 0, gids }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roce_port_has_four_gids_and_an_infiniband_port_a_lid() {
        let mut rng = SplitMix::new(1);
        let roce = Identity::random(Link::Ethernet, &mut rng);
        let kinds: Vec<_> = roce.gids.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [GidKind::RoceV1, GidKind::RoceV2, GidKind::RoceV1, GidKind::RoceV2]);
        assert!(roce.gids[..2].iter().all(|entry| entry.gid.is_link_local()));
        assert!(roce.gids[2..].iter().all(|entry| entry.gid.to_ipv4().unwrap().octets()[0] >= 240));
        assert_eq!(roce.lid, 0);
        let ib = Identity::random(Link::InfiniBand, &mut rng);
        assert!((1..0xc000).contains(&ib.lid) && ib.gids.len() == 1);
        assert_ne!(ib.guid, roce.guid);
    }
}
