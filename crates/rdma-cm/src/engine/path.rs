//! Queue pairs and paths in messages.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma_mem::{Context, Gid, GidType, LinkLayer, Mtu, PortAttributes};
use rdma_proto::Time;
use rdma_proto::cm::wire::{Answer, Offer, Path, Query, Timeout, Transport};
use rdma_proto::cm::{
    Address, CommId, Error as Refusal, IpCmHeader, Manager, PortSpace, ServiceId, Transmit,
};
use rdma_qp::{PreparedQueuePair, QueuePair, QueuePairEndpoint, QueuePairType};
use rdma_sys::interface_addresses;
use rdma_types::{AckTimeout, Lid, Pkey};

use crate::error::Error;
use crate::parameters::{Parameters, Route};

/// The LID in messages of RoCE, which has none (IBTA annex A16).
const PERMISSIVE_LID: Lid = Lid::new(0xffff);
/// The partition that every port is a member of.
const DEFAULT_PKEY: Pkey = Pkey::new(0xffff);
/// The code of 4.3 s: the time between repetitions, as in Linux.
const RESPONSE_TIMEOUT: u8 = 20;
/// The number of repetitions, as in Linux.
const RETRIES: u8 = 15;
/// The maximum number of routers that packets may pass.
pub(super) const HOP_LIMIT: u8 = 64;
/// The code of 17 s: the longest time for an acknowledgement that this end adopts from a peer. Code 0 means forever.
const LONGEST_ACK_TIMEOUT: u8 = 22;

/// Returns the GID with an IP address.
pub(crate) fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip),
        IpAddr::V6(ip) => Gid::from_bytes(ip.octets()),
    }
}

/// Returns the IP address of a GID; the inverse of [`gid_of`].
pub(crate) fn ip_of(gid: Gid) -> IpAddr {
    gid.to_ipv4().map_or_else(|| Ipv6Addr::from(gid.to_bytes()).into(), IpAddr::V4)
}

/// Returns the addresses of this host's interfaces.
fn own_addresses() -> Vec<IpAddr> {
    let all = interface_addresses().unwrap_or_default();
    all.iter().filter_map(|entry| Some(entry.address?.ip())).collect()
}

/// Returns true if an address belongs to an interface of this host.
pub(crate) fn is_of_interface(ip: IpAddr) -> bool {
    own_addresses().contains(&ip)
}

/// The time during which an address in a list of the interfaces counts as this host's.
const CURRENT: Duration = Duration::from_millis(100);

/// The addresses of this host's interfaces, and when they were read. Listing them takes a dozen system calls, so
/// requests that arrive together share a list.
#[derive(Default)]
pub(super) struct OwnAddresses(Mutex<Option<(Instant, Vec<IpAddr>)>>);

impl OwnAddresses {
    /// Returns true if an address belongs to an interface, like [`is_of_interface`].
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.contains_at(ip, Instant::now(), own_addresses)
    }

    /// An address that is not in the list may be new, so the list is then read again.
    fn contains_at(&self, ip: IpAddr, now: Instant, list: impl FnOnce() -> Vec<IpAddr>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known.as_ref().is_some_and(|(read_at, all)| {
            now.saturating_duration_since(*read_at) < CURRENT && all.contains(&ip)
        });
        is_known || known.insert((now, list())).1.contains(&ip)
    }
}

/// Returns the attributes of a device's ports.
pub(super) fn ports(context: &Context) -> Result<Vec<PortAttributes>, Error> {
    let ports = 1..=context.query_device()?.port_count;
    Ok(ports.map(|port| context.query_port(port)).collect::<Result<_, _>>()?)
}

/// Returns the addresses of a device's ports. The peers of the same device have the same ones.
pub(crate) fn addresses(context: &Context) -> Result<Vec<Address>, Error> {
    let (table, ports) = (context.gid_table()?, ports(context)?);
    let gids = table.iter().filter(|entry| entry.gid_type != GidType::IB);
    let gids = gids.map(|entry| Address::Gid(entry.gid));
    let infiniband = ports.iter().filter(|port| port.link_layer == LinkLayer::INFINIBAND);
    Ok(gids.chain(infiniband.map(|port| Address::Lid(port.lid))).collect())
}

/// Returns the address from which a queue pair sends, with its type.
fn address_of(endpoint: &QueuePairEndpoint) -> Option<(Address, GidType)> {
    if endpoint.link_layer() == LinkLayer::INFINIBAND {
        return Some((Address::Lid(endpoint.lid()), GidType::IB));
    }
    let gids = endpoint.gids();
    let best = gids.iter().find(|gid| gid.gid_type == GidType::ROCE_V2).or(gids.first())?;
    Some((Address::Gid(best.gid), best.gid_type))
}

/// Returns the address of an end with this LID and GID, and the type of the GIDs with which packets reach it. The LID
/// counts only on InfiniBand: in the kernel's records of other paths, its place has other contents.
pub(super) fn end_at(link_layer: LinkLayer, lid: Lid, gid: Gid) -> (Address, GidType) {
    if link_layer == LinkLayer::INFINIBAND {
        (Address::Lid(lid), GidType::IB)
    } else {
        (Address::Gid(gid), GidType::ROCE_V2)
    }
}

/// The parts of a request that depend on its type.
#[derive(Clone, Copy)]
pub(crate) enum Ends {
    /// A REQ, with the parameters of this end.
    Connection(Parameters),
    /// A SIDR_REQ.
    Query,
}

/// The request of an active end, which owns its parts.
pub(crate) struct Request {
    service: ServiceId,
    local: Address,
    remote: Address,
    gid_type: GidType,
    mtu: Mtu,
    traffic_class: u8,
    ack_timeout: AckTimeout,
    ends: Ends,
    private_data: Vec<u8>,
    /// The local address, if the peer is on another host.
    source: Option<Gid>,
}

impl Request {
    /// Creates the request of a queue pair. `source` is the local address if `to` is on another host. Otherwise, both
    /// ends have the address `to`, and the same device.
    pub(crate) fn new(
        device: &str,
        queue_pair: &PreparedQueuePair,
        to: SocketAddr,
        source: Option<Gid>,
        private_data: &[u8],
    ) -> Result<Self, Error> {
        let endpoint = queue_pair.endpoint();
        let qp_type = endpoint.qp_type();
        if !matches!(qp_type, QueuePairType::RC | QueuePairType::UC) {
            return Err(Error::NotConnected { qp_type });
        }
        let (own, gid_type) =
            address_of(&endpoint).ok_or_else(|| Error::NoAddress { device: device.into() })?;
        let (local, remote, gid_type) = match source {
            None => (own, own, gid_type),
            Some(source) => (Address::Gid(source), Address::Gid(gid_of(to.ip())), GidType::ROCE_V2),
        };
        let route = Route {
            local,
            remote,
            gid_type,
            mtu: endpoint.mtu(),
            traffic_class: queue_pair.traffic_class().unwrap_or(0),
            ack_timeout: queue_pair.ack_timeout(),
            source: SocketAddr::new(source.map_or(to.ip(), ip_of), 0),
            destination: to,
            is_outside: source.is_some(),
        };
        let ends = Ends::Connection(Parameters::of(queue_pair));
        Ok(Self::to(PortSpace::Tcp, &route, ends, private_data))
    }

    /// Creates a request to the service at the destination of a route.
    pub(crate) fn to(space: PortSpace, route: &Route, ends: Ends, private_data: &[u8]) -> Self {
        let (from, to) = (route.source, route.destination);
        let mut data = vec![0; IpCmHeader::LEN];
        if let (Some(header), Some(place)) =
            (IpCmHeader::new(from.ip(), to.ip(), from.port()), data.first_chunk_mut())
        {
            header.emit(place);
        }
        data.extend_from_slice(private_data);
        let source = match route.local {
            Address::Gid(gid) if route.is_outside => Some(gid),
            _ => None,
        };
        Self {
            service: space.service_id(to.port()),
            local: route.local,
            remote: route.remote,
            gid_type: route.gid_type,
            mtu: route.mtu,
            traffic_class: route.traffic_class,
            ack_timeout: route.ack_timeout,
            ends,
            private_data: data,
            source,
        }
    }

    /// Returns the service.
    pub(crate) const fn service(&self) -> ServiceId {
        self.service
    }

    /// Returns the address of the peer.
    pub(crate) const fn remote(&self) -> Address {
        self.remote
    }

    /// Returns the local address, if the peer is on another host.
    pub(crate) const fn source(&self) -> Option<Gid> {
        self.source
    }

    /// Returns true for a SIDR_REQ.
    pub(super) const fn is_query(&self) -> bool {
        matches!(self.ends, Ends::Query)
    }

    /// Creates the REQ or SIDR_REQ.
    pub(super) fn send(
        &self,
        manager: &mut Manager,
        now: Time,
    ) -> Result<(CommId, Transmit), Refusal> {
        let response = Timeout::from_code(RESPONSE_TIMEOUT).unwrap_or_default();
        match self.ends {
            Ends::Connection(parameters) => {
                manager.connect(now, self.remote, &self.offer(&parameters, response))
            }
            Ends::Query => {
                let (service_id, private_data) = (self.service, &self.private_data[..]);
                let query = Query { p_key: DEFAULT_PKEY, service_id, private_data };
                manager.query(now, self.remote, &query, response, RETRIES)
            }
        }
    }

    fn offer(&self, own: &Parameters, response: Timeout) -> Offer<'_> {
        Offer {
            service_id: self.service,
            qpn: own.qpn,
            psn: own.psn,
            responder_resources: own.responder_resources,
            initiator_depth: own.initiator_depth,
            remote_response_timeout: response,
            local_response_timeout: response,
            max_cm_retries: RETRIES,
            transport: if own.is_unreliable { Transport::Uc } else { Transport::Rc },
            flow_control: own.flow_control,
            retry_count: own.retry_count,
            rnr_retry_count: own.rnr_retry_count,
            srq: own.srq,
            p_key: DEFAULT_PKEY,
            mtu_code: self.mtu.code(),
            primary: self.path(),
            private_data: &self.private_data,
            ..Offer::default()
        }
    }

    fn path(&self) -> Path {
        let path = Path {
            traffic_class: self.traffic_class,
            hop_limit: HOP_LIMIT,
            subnet_local: true,
            ack_timeout: Timeout::from_code(self.ack_timeout.code()).unwrap_or_default(),
            ..Path::default()
        };
        match (self.local, self.remote) {
            (Address::Lid(local_lid), Address::Lid(remote_lid)) => {
                Path { local_lid, remote_lid, ..path }
            }
            (Address::Gid(local_gid), Address::Gid(remote_gid)) => Path {
                local_lid: PERMISSIVE_LID,
                remote_lid: PERMISSIVE_LID,
                local_gid,
                remote_gid,
                ..path
            },
            _ => path,
        }
    }

    /// Returns the peer's end, which a REP describes, and its parameters.
    pub(super) fn peer(&self, answer: &Answer<'_>) -> (QueuePairEndpoint, Parameters) {
        let peer = QueuePairEndpoint::new(answer.qpn, answer.psn)
            .with_mtu(self.mtu)
            .with_rd_atomic(answer.initiator_depth, answer.responder_resources);
        let is_unreliable =
            matches!(self.ends, Ends::Connection(Parameters { is_unreliable: true, .. }));
        let peer = if is_unreliable { peer.with_unreliable_connection() } else { peer };
        let parameters = Parameters {
            responder_resources: answer.responder_resources,
            initiator_depth: answer.initiator_depth,
            rnr_retry_count: answer.rnr_retry_count,
            flow_control: answer.flow_control,
            srq: answer.srq,
            is_unreliable,
            ..Parameters::new(answer.qpn, answer.psn)
        };
        (at(peer, self.remote, self.gid_type, self.source), parameters)
    }
}

/// Adds the address of a peer. `local` is this end's address if the peer is on another host.
fn at(
    endpoint: QueuePairEndpoint,
    address: Address,
    gid_type: GidType,
    local: Option<Gid>,
) -> QueuePairEndpoint {
    match (address, local) {
        (Address::Lid(lid), _) => endpoint.with_lid(lid),
        (Address::Gid(gid), None) => endpoint.with_gid(gid, gid_type),
        (Address::Gid(gid), Some(local)) => {
            endpoint.with_gid(gid, gid_type).with_stream_addresses(ip_of(gid), ip_of(local))
        }
        _ => endpoint,
    }
}

/// Returns the end from which an offer claims to come.
pub(super) fn claimed(offer: &Offer<'_>) -> Address {
    let path = &offer.primary;
    if path.local_lid == PERMISSIVE_LID {
        Address::Gid(path.local_gid)
    } else {
        Address::Lid(path.local_lid)
    }
}

/// The contents of a REQ.
pub(super) struct Requester<'a> {
    pub(super) endpoint: QueuePairEndpoint,
    pub(super) parameters: Parameters,
    pub(super) route: Route,
    /// The program's private data.
    pub(super) private_data: &'a [u8],
}

/// Returns the contents of a REQ, or `None` if these are invalid. `local` is the destination of the REQ's packet if the
/// peer is on another host.
pub(super) fn requester<'a>(
    context: &Context,
    (from, local): (Address, Option<Gid>),
    offer: &Offer<'a>,
) -> Option<Requester<'a>> {
    let (header, private_data) = IpCmHeader::parse(offer.private_data)?;
    let is_unreliable = offer.transport == Transport::Uc;
    let peer = QueuePairEndpoint::new(offer.qpn, offer.psn)
        .with_mtu(offer.mtu()?)
        .with_rd_atomic(offer.initiator_depth, offer.responder_resources);
    let peer = if is_unreliable { peer.with_unreliable_connection() } else { peer };
    let parameters = Parameters {
        responder_resources: offer.responder_resources,
        initiator_depth: offer.initiator_depth,
        retry_count: offer.retry_count,
        rnr_retry_count: offer.rnr_retry_count,
        flow_control: offer.flow_control,
        srq: offer.srq,
        is_unreliable,
        ..Parameters::new(offer.qpn, offer.psn)
    };
    let mut route = incoming(context, (from, local), offer.service_id, &header)?;
    route.mtu = offer.mtu()?;
    route.traffic_class = offer.primary.traffic_class;
    // Without these limits, requests to a client that has disappeared could stay for hours, or forever.
    let code = offer.primary.ack_timeout.code().clamp(1, LONGEST_ACK_TIMEOUT);
    route.ack_timeout = AckTimeout::from_code(code).unwrap_or_default();
    let endpoint = at(peer, from, route.gid_type, local);
    Some(Requester { endpoint, parameters, route, private_data })
}

/// Returns the route and the program's private data of a SIDR_REQ, or `None` if these are invalid.
pub(super) fn querier<'a>(
    context: &Context,
    ends: (Address, Option<Gid>),
    query: &Query<'a>,
) -> Option<(Route, &'a [u8])> {
    let (header, private_data) = IpCmHeader::parse(query.private_data)?;
    Some((incoming(context, ends, query.service_id, &header)?, private_data))
}

/// Returns the route to the sender of a request.
fn incoming(
    context: &Context,
    (from, local): (Address, Option<Gid>),
    service: ServiceId,
    header: &IpCmHeader,
) -> Option<Route> {
    let gid_type = match (from, local) {
        (_, Some(_)) => GidType::ROCE_V2,
        (Address::Gid(gid), None) => {
            let table = context.gid_table().ok()?;
            let mut types =
                table.iter().filter(|entry| entry.gid == gid).map(|entry| entry.gid_type);
            let first = types.next()?;
            if first == GidType::ROCE_V2 || types.any(|other| other == GidType::ROCE_V2) {
                GidType::ROCE_V2
            } else {
                first
            }
        }
        _ => GidType::IB,
    };
    let (_, port) = service.port()?;
    let remote_ip = match from {
        Address::Gid(gid) if local.is_some() => ip_of(gid),
        _ => header.source(),
    };
    Some(Route {
        // Both ends of a connection of this host have the same address.
        local: local.map_or(from, Address::Gid),
        remote: from,
        gid_type,
        mtu: Mtu::MTU1024,
        traffic_class: 0,
        ack_timeout: AckTimeout::default(),
        source: SocketAddr::new(local.map_or(header.destination(), ip_of), port),
        destination: SocketAddr::new(remote_ip, header.source_port()),
        is_outside: local.is_some(),
    })
}

/// Connects a queue pair to the peer's, through the states `INIT`, `RTR` and `RTS`.
///
/// The PSN in a REQ or REP is that of the first packet that its receiver sends, and in an endpoint that of its owner. So
/// each end sends with the PSN in the peer's message, and expects the one in its own.
pub(crate) fn connect(
    queue_pair: PreparedQueuePair,
    peer: &QueuePairEndpoint,
) -> Result<QueuePair, rdma_qp::Error> {
    let mut attributes = queue_pair.connect_attributes(peer)?;
    attributes.send_psn = peer.psn();
    attributes.recv_psn = queue_pair.endpoint().psn();
    queue_pair.connect(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_address_is_seen_at_once_and_a_removed_one_after_a_time() {
        let (own, start) = (OwnAddresses::default(), Instant::now());
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let contains = |last, now, list: &[u8]| {
            own.contains_at(ip(last), now, || list.iter().map(|&last| ip(last)).collect())
        };
        assert!(contains(1, start, &[1]));
        // The list is not read again for an address that it has.
        let last = start + CURRENT - Duration::from_nanos(1);
        assert!(contains(1, last, &[]));
        assert!(!contains(2, last, &[1]));
        assert!(contains(2, last, &[1, 2]), "it was added");
        assert!(contains(1, last + CURRENT - Duration::from_nanos(1), &[]));
        assert!(!contains(1, last + CURRENT, &[2]), "it was removed");
        assert!(!contains(1, last + CURRENT, &[2]));
        assert!(contains(2, last + CURRENT, &[]));
    }
}
