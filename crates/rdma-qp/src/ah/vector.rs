//! Routes that packets take to a peer.

use rdma_mem::{Gid, Lid};
use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route};

/// The route of packets from one subnet, or one Ethernet port, to another: the GIDs of both ends.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobalRoute {
    /// The peer's GID.
    pub destination: Gid,
    /// The index of the source GID in the GID table of the sending port.
    pub source_index: u8,
}

impl GlobalRoute {
    /// Creates a route from the GID at this index of the sending port's table to `destination`.
    #[must_use]
    pub const fn new(source_index: u8, destination: Gid) -> Self {
        Self { destination, source_index }
    }
}

/// A route from one port to another, from which an [address handle](crate::AddressHandle) is created.
///
/// [`QueuePair::address_vector`](crate::QueuePair::address_vector) computes it for a queue pair and its peer. A program
/// that knows the route can create the vector from parts.
///
/// ```
/// use rdma_qp::{AddressVector, GlobalRoute};
/// use rdma_types::Lid;
///
/// let within_the_subnet = AddressVector::new(1, Lid::new(0x21)).with_service_level(3);
/// let roce = AddressVector::new(1, Lid::NONE)
///     .with_route(GlobalRoute::new(3, "::ffff:192.0.2.7".parse()?))
///     .with_traffic_class(0x68);
/// # assert_eq!((roce.hop_limit, within_the_subnet.route), (64, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressVector {
    /// The sending port, from 1.
    pub port: u8,
    /// The peer's LID; [`Lid::NONE`] on Ethernet.
    pub lid: Lid,
    /// The GIDs of both ends; `None` within an InfiniBand subnet.
    pub route: Option<GlobalRoute>,
    /// The service level: the priority in InfiniBand and RoCE, 0 to 15.
    pub service_level: u8,
    /// The traffic class of routed packets. For RoCE v2, this is the byte that holds DSCP and ECN.
    pub traffic_class: u8,
    /// The maximum number of routers that packets may pass.
    pub hop_limit: u8,
    /// The flow label of routed packets, 20 bits.
    pub flow_label: u32,
}

impl AddressVector {
    /// A hop limit that is large enough for every network.
    pub(crate) const HOP_LIMIT: u8 = 64;

    /// Creates a route to `lid` without a global route: service level, traffic class and flow label are 0, the hop
    /// limit is 64.
    #[must_use]
    pub const fn new(port: u8, lid: Lid) -> Self {
        Self {
            port,
            lid,
            route: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: Self::HOP_LIMIT,
            flow_label: 0,
        }
    }

    /// Sets the GIDs of both ends.
    #[must_use]
    pub const fn with_route(mut self, route: GlobalRoute) -> Self {
        self.route = Some(route);
        self
    }

    /// Sets the service level, 0 to 15.
    #[must_use]
    pub const fn with_service_level(mut self, service_level: u8) -> Self {
        self.service_level = service_level;
        self
    }

    /// Sets the traffic class.
    #[must_use]
    pub const fn with_traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Sets the maximum number of routers that packets may pass.
    #[must_use]
    pub const fn with_hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Sets the flow label, 20 bits.
    #[must_use]
    pub const fn with_flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }

    pub(crate) fn to_raw(self) -> ibv_ah_attr {
        let mut raw = ibv_ah_attr {
            dlid: self.lid.get(),
            sl: self.service_level,
            port_num: self.port,
            ..Default::default()
        };
        if let Some(route) = self.route {
            raw.is_global = 1;
            raw.grh = ibv_global_route {
                dgid: ibv_gid { raw: route.destination.to_bytes() },
                sgid_index: route.source_index,
                flow_label: self.flow_label,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            };
        }
        raw
    }
}
