//! Multicast groups, by their IP addresses.

use rdma_mem::{Context, GidEntry};
use rdma_proto::cm::Address;
use rdma_qp::{AddressVector, GlobalRoute};
use rdma_types::{Gid, Lid};

use crate::error::Error;
use crate::parameters::Route;

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
    /// The service level of the group's datagrams, 0 to 15.
    pub service_level: u8,
    /// The flow label of the group's datagrams, 20 bits.
    pub flow_label: u32,
    /// The maximum number of routers that the group's datagrams may pass.
    pub hop_limit: u8,
}

impl Group {
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
        Ok(AddressVector::new(own.port, self.lid)
            .with_route(route)
            .with_service_level(self.service_level)
            .with_traffic_class(self.route.traffic_class)
            .with_flow_label(self.flow_label)
            .with_hop_limit(self.hop_limit))
    }
}
