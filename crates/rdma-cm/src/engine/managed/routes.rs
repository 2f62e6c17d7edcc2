//! The routes of IDs of the kernel's rdma_cm.

use std::net::IpAddr;

use rdma_mem::Mtu;
use rdma_proto::cm::Address;
use rdma_sys::ibv_qp_attr;
use rdma_types::{AckTimeout, Lid};

use super::library::{Id, gid_of_path};
use crate::engine::Engine;
use crate::engine::path::{addresses, end_at, ip_of};
use crate::parameters::Route;

impl Engine {
    /// Returns true if a peer is on this host: by the IP address that it states, and by the end of the path to it. Both
    /// are checked, because a peer on another host can state any address, also as this end's.
    fn is_of_this_host(&self, ip: IpAddr, end: Address) -> bool {
        let is_of_interface = |ip| self.own.contains(ip);
        let is_stated = ip.is_unspecified() || ip.is_loopback() || is_of_interface(ip);
        is_stated
            && match end {
                Address::Gid(gid) => is_of_interface(ip_of(gid)) || self.has_gid(gid),
                end => addresses(self.context()).is_ok_and(|own| own.contains(&end)),
            }
    }

    /// Returns the route of an ID: to the other end of a request, or to an address that was resolved.
    pub(super) fn route_of(&self, id: &Id) -> Option<Route> {
        let [local, remote] = id.gids();
        let [source, destination] = id.addresses();
        let (source, destination) = (source?, destination?);
        // The other end of a query has no path record.
        let path = id.path();
        let lid = path.map_or(Lid::NONE, |path| Lid::new(u16::from_be(path.dlid)));
        let (remote, gid_type) = end_at(self.link_layer(id.port())?, lid, remote);
        Some(Route {
            local: Address::Gid(local),
            remote,
            gid_type,
            mtu: path.and_then(|path| Mtu::from_code(path.mtu)).unwrap_or(Mtu::MTU1024),
            traffic_class: path.map_or(0, |path| path.traffic_class),
            ack_timeout: AckTimeout::default(),
            source,
            destination,
            is_outside: !self.is_of_this_host(destination.ip(), remote),
        })
    }

    /// Returns the route to the other end of a request, with the path in the REQ.
    pub(super) fn route_of_request(
        &self,
        id: &Id,
        [_, rtr, _]: &[ibv_qp_attr; 3],
    ) -> Option<Route> {
        let [own, other] = id.addresses();
        let (source, destination) = own.zip(other)?;
        let (lid, gid) = (Lid::new(rtr.ah_attr.dlid), gid_of_path(&rtr.ah_attr));
        let (remote, gid_type) = end_at(self.link_layer(rtr.ah_attr.port_num)?, lid, gid);
        let [local, _] = id.gids();
        Some(Route {
            local: Address::Gid(local),
            remote,
            gid_type,
            mtu: u8::try_from(rtr.path_mtu.0).ok().and_then(Mtu::from_code)?,
            traffic_class: rtr.ah_attr.grh.traffic_class,
            ack_timeout: AckTimeout::default(),
            source,
            destination,
            is_outside: !self.is_of_this_host(destination.ip(), remote),
        })
    }
}
