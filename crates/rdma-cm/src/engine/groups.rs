//! The choice of a multicast group's GID, and of the address from which it is reached.

use std::net::{IpAddr, SocketAddr};

use rdma_mem::{Context, GidEntry, GidType, LinkLayer};
use rdma_proto::cm::Address;
use rdma_types::{AckTimeout, Gid, Lid};

use super::path::{HOP_LIMIT, end_at, gid_of, ip_of, is_of_interface};
use crate::error::Error;
use crate::group::Group;
use crate::parameters::{QKEY, Route};

/// The P_Key in a group's GID: that of the partition to which every port belongs.
const PKEY: [u8; 2] = [0xff; 2];
/// The first LID of groups, and the number of their LIDs.
const LIDS: (u16, u16) = (0xc000, 0x3fff);

/// Returns the GID that the kernel's rdma_cm gives to a group of the UDP port space on InfiniBand.
fn infiniband_gid(group: IpAddr) -> Gid {
    let mut gid = [0; 16];
    // The scope is the subnet. The fourth byte distinguishes these groups from those of IP over InfiniBand.
    match group {
        IpAddr::V4(group) => {
            gid[..4].copy_from_slice(&[0xff, 0x12, 0x40, 0x01]);
            gid[4..6].copy_from_slice(&PKEY);
            gid[12..].copy_from_slice(&group.octets());
            gid[12] &= 0x0f;
        }
        IpAddr::V6(group) => {
            let octets = group.octets();
            if octets[0] == 0xff && octets[1] & 0xf0 == 0x10 && octets[2..4] == [0xa0, 0x1b] {
                // The subnet's administration assigned it.
                return Gid::from_bytes(octets);
            }
            gid[..4].copy_from_slice(&[0xff, 0x12, 0x60, 0x01]);
            gid[4..6].copy_from_slice(&PKEY);
            gid[6..].copy_from_slice(&octets[6..]);
        }
    }
    Gid::from_bytes(gid)
}

/// Returns the LID of a group on a software device, which has no subnet manager that could assign one.
fn software_lid(gid: Gid) -> Lid {
    let [.., high, low] = gid.to_bytes();
    let (first, count) = LIDS;
    Lid::new(first + u16::from_be_bytes([high, low]) % count)
}

/// Returns the group of an IP address on a software device. `source` is the wanted local address. `listens` returns true for
/// addresses at which the device listens.
pub(crate) fn group_of(
    context: &Context,
    group: SocketAddr,
    source: Option<IpAddr>,
    listens: impl Fn(IpAddr) -> bool,
) -> Result<Group, Error> {
    let ip = group.ip().to_canonical();
    if !ip.is_multicast() {
        return Err(Error::NotGroup { address: ip });
    }
    let source = source.map(|ip| ip.to_canonical());
    let no_address = || Error::NoAddress { device: context.device().name().to_owned() };
    let port = context.query_port(1)?;
    let mtu = port.active_mtu.ok_or_else(no_address)?;
    let is_infiniband = port.link_layer == LinkLayer::INFINIBAND;
    let (local, own, gid) = if is_infiniband {
        (Address::Lid(port.lid), source, infiniband_gid(ip))
    } else {
        let own = own_gid(context, ip, source, listens)?.ok_or_else(no_address)?;
        (Address::Gid(own.gid), Some(ip_of(own.gid)), gid_of(ip))
    };
    let lid = if is_infiniband { software_lid(gid) } else { Lid::NONE };
    let (remote, gid_type) = end_at(port.link_layer, lid, gid);
    let unspecified = if ip.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let route = Route {
        local,
        remote,
        gid_type,
        mtu,
        traffic_class: 0,
        ack_timeout: AckTimeout::default(),
        source: SocketAddr::new(own.unwrap_or(unspecified), 0),
        destination: SocketAddr::new(ip, group.port()),
        is_outside: false,
    };
    let (service_level, flow_label, hop_limit) = (0, 0, HOP_LIMIT);
    Ok(Group { route, gid, lid, qkey: QKEY, service_level, flow_label, hop_limit })
}

/// Returns the address from which the kernel's rdma_cm reaches a group through the device, unless the caller wants
/// another. Returns `None` on InfiniBand: its GIDs contain no addresses.
pub(crate) fn source_to(context: &Context, group: IpAddr) -> Result<Option<IpAddr>, Error> {
    Ok(own_gid(context, group, None, |_| false)?.map(|own| ip_of(own.gid)))
}

/// Returns the GID of RoCE v2 from which a group is reached: that of the wanted address, or else of the group's IP version.
/// The addresses at which a software device listens precede others, as do those of network interfaces. See [`rank`].
fn own_gid(
    context: &Context,
    group: IpAddr,
    source: Option<IpAddr>,
    listens: impl Fn(IpAddr) -> bool,
) -> Result<Option<GidEntry>, Error> {
    let table = context.gid_table()?;
    let of_version = table.into_iter().filter(|entry| {
        entry.gid_type == GidType::ROCE_V2 && ip_of(entry.gid).is_ipv4() == group.is_ipv4()
    });
    let order = |entry: &GidEntry| {
        let ip = ip_of(entry.gid);
        (rank(ip, source, listens(ip)), !is_of_interface(ip))
    };
    Ok(of_version.min_by_key(order))
}

/// Returns the rank of an address from which a group can be reached. The lowest rank is chosen. Link-local addresses of
/// version 6 follow others, because the kernel's rdma_cm accepts them only with an interface.
fn rank(ip: IpAddr, source: Option<IpAddr>, listens: bool) -> impl Ord {
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    (Some(ip) != source, !listens, is_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_gids_of_the_kernels_rdma_cm() {
        let gid = |ip: &str| infiniband_gid(ip.parse().unwrap());
        let of = |text: &str| match text.parse().unwrap() {
            IpAddr::V6(ip) => Gid::from_bytes(ip.octets()),
            IpAddr::V4(_) => unreachable!(),
        };
        // The upper four bits are those of every group.
        assert_eq!(gid("239.1.2.3"), of("ff12:4001:ffff::f01:203"));
        assert_eq!(gid("224.1.2.3"), of("ff12:4001:ffff::1:203"));
        let group = "ff0e:1:2:3:4:5:6:7";
        assert_eq!(gid(group), of("ff12:6001:ffff:3:4:5:6:7"));
        let assigned = "ff12:a01b:fe80::7";
        assert_eq!(gid(assigned), of(assigned));
        assert_eq!(gid_of("239.1.2.3".parse().unwrap()), of("::ffff:239.1.2.3"));
        assert_eq!(gid_of(group.parse().unwrap()), of(group));
    }

    #[test]
    fn link_local_addresses_follow_others_unless_one_is_wanted() {
        let [link_local, global]: [IpAddr; 2] =
            ["fe80::1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        let is_first =
            |source, listens| rank(link_local, source, listens) < rank(global, source, false);
        assert!(rank(global, None, false) < rank(link_local, None, false));
        assert!(is_first(Some(link_local), false));
        assert!(is_first(None, true), "the device listens at it");
    }

    #[test]
    fn lids_of_groups_are_in_the_range_of_groups() {
        for last in [0, 1, 0x3ffe, 0x3fff, 0x7ffd, u16::MAX] {
            let mut bytes = [0xff; 16];
            bytes[14..].copy_from_slice(&last.to_be_bytes());
            let lid = software_lid(Gid::from_bytes(bytes)).get();
            assert!((0xc000..=0xfffe).contains(&lid), "{last:#x}: {lid:#x}");
        }
    }
}
