//! Multicast groups, by their IP addresses.

use std::net::{IpAddr, SocketAddr};

use rdma_mem::{Context, GidEntry, GidType, LinkLayer};
use rdma_proto::cm::Address;
use rdma_qp::{AddressVector, GlobalRoute};
use rdma_types::{AckTimeout, Gid, Lid};

use crate::engine::Engine;
use crate::engine::managed::is_of_interface;
use crate::engine::path::{gid_of, ip_of};
use crate::error::Error;
use crate::parameters::{QKEY, Route};

/// A multicast group that has been joined. Datagrams to it have the destination
/// [`Qpn::MULTICAST`](rdma_qp::Qpn::MULTICAST).
///
/// # Examples
/// See [`join`](crate::unmanaged::join).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// The way to the group.
    pub route: Route,
    /// The GID with which a queue pair becomes a member
    /// ([`QueuePair::attach_multicast`](rdma_qp::QueuePair::attach_multicast)).
    pub gid: Gid,
    /// The LID with which a queue pair becomes a member: [`Lid::NONE`] except on InfiniBand.
    pub lid: Lid,
    /// The Q_Key of the group's datagrams.
    pub qkey: u32,
}

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

impl Group {
    /// Returns the group of an IP address on a software device. `source` is the wanted local address.
    pub(crate) fn of(
        engine: &Engine,
        group: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<Self, Error> {
        let context = engine.context();
        let ip = group.ip().to_canonical();
        if !ip.is_multicast() {
            return Err(Error::NotGroup { address: ip });
        }
        let no_address = || Error::NoAddress { device: context.device().name().to_owned() };
        let port = context.query_port(1)?;
        let mtu = port.active_mtu.ok_or_else(no_address)?;
        let is_infiniband = port.link_layer == LinkLayer::INFINIBAND;
        let (local, gid_type, own) = if is_infiniband {
            (Address::Lid(port.lid), GidType::IB, source)
        } else {
            let own = own_gid(engine, ip, source)?.ok_or_else(no_address)?;
            (Address::Gid(own.gid), own.gid_type, Some(ip_of(own.gid)))
        };
        let gid = if is_infiniband { infiniband_gid(ip) } else { gid_of(ip) };
        let lid = if is_infiniband { software_lid(gid) } else { Lid::NONE };
        let unspecified = if ip.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let route = Route {
            local,
            remote: if is_infiniband { Address::Lid(lid) } else { Address::Gid(gid) },
            gid_type,
            mtu,
            traffic_class: 0,
            ack_timeout: AckTimeout::default(),
            source: SocketAddr::new(own.unwrap_or(unspecified), 0),
            destination: SocketAddr::new(ip, group.port()),
            is_outside: false,
        };
        Ok(Self { route, gid, lid, qkey: QKEY })
    }

    /// Returns the address vector with which datagrams are sent to the group.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device cannot be queried, and [`Error::NoAddress`] if it has lost the GID from which the
    /// group is reached.
    pub fn address_vector(&self, context: &Context) -> Result<AddressVector, Error> {
        let table = context.gid_table()?;
        let is_own = |entry: &&GidEntry| match self.route.local {
            Address::Gid(gid) => entry.gid == gid && entry.gid_type == self.route.gid_type,
            _ => true,
        };
        let own = table.iter().find(is_own).and_then(|own| Some((own, own.index.try_into().ok()?)));
        let no_address = || Error::NoAddress { device: context.device().name().to_owned() };
        let (own, index) = own.ok_or_else(no_address)?;
        let route = GlobalRoute::new(index, self.gid);
        Ok(AddressVector::new(own.port, self.lid).with_route(route))
    }
}

/// Returns the address from which the kernel's rdma_cm reaches a group through the device. Returns `None` for InfiniBand,
/// whose GIDs contain no addresses.
pub(crate) fn source_to(engine: &Engine, group: IpAddr) -> Result<Option<IpAddr>, Error> {
    Ok(own_gid(engine, group, None)?.map(|own| ip_of(own.gid)))
}

/// Returns the GID of RoCE v2 from which a group is reached: the one of the wanted address, or the first one of the group's
/// IP version. Those at which a software device listens precede others, as do those of network interfaces.
fn own_gid(
    engine: &Engine,
    group: IpAddr,
    source: Option<IpAddr>,
) -> Result<Option<GidEntry>, Error> {
    let table = engine.context().gid_table()?;
    let of_version = table.into_iter().filter(|entry| {
        entry.gid_type == GidType::ROCE_V2 && ip_of(entry.gid).is_ipv4() == group.is_ipv4()
    });
    let rank = |entry: &GidEntry| {
        let ip = ip_of(entry.gid);
        let listens = engine.source_to(ip) == Some(entry.gid);
        (Some(ip) != source, !listens, !is_of_interface(ip))
    };
    Ok(of_version.min_by_key(rank))
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
    fn lids_of_groups_are_in_the_range_of_groups() {
        for last in [0, 1, 0x3ffe, 0x3fff, 0x7ffd, u16::MAX] {
            let mut bytes = [0xff; 16];
            bytes[14..].copy_from_slice(&last.to_be_bytes());
            let lid = software_lid(Gid::from_bytes(bytes)).get();
            assert!((0xc000..=0xfffe).contains(&lid), "{last:#x}: {lid:#x}");
        }
    }
}
