//! Queue pairs and paths in messages.

use std::net::{IpAddr, SocketAddr};

use rdma_mem::{Context, GidType, LinkLayer};
use rdma_proto::cm::wire::{Answer, Offer, Path, Timeout, Transport};
use rdma_proto::cm::{Address, IpCmHeader};
use rdma_qp::{QueuePairEndpoint, QueuePairType};
use rdma_types::{Lid, Pkey};

use super::socket::service;
use crate::error::Error;

/// The LID in messages of RoCE, which has none (IBTA annex A16).
const PERMISSIVE_LID: Lid = Lid::new(0xffff);
/// The partition that every port is a member of.
const DEFAULT_PKEY: Pkey = Pkey::new(0xffff);
/// The code of 4.3 s: the time between repetitions, as in Linux.
const RESPONSE_TIMEOUT: u8 = 20;
/// The code of 67 ms: the ACK timeout in the path.
const ACK_TIMEOUT: u8 = 14;
/// The number of repetitions, as in Linux.
const RETRIES: u8 = 15;
/// The number of retries of packets, with and without a receive request: the maximum.
const PACKET_RETRIES: u8 = 7;
const HOP_LIMIT: u8 = 64;

/// Returns the addresses of a device's ports. The peers of the same device have the same ones.
pub(crate) fn addresses(context: &Context) -> Result<Vec<Address>, Error> {
    let table = context.gid_table()?;
    let gids = table.iter().filter(|entry| entry.gid_type != GidType::IB);
    let mut all: Vec<_> = gids.map(|entry| Address::Gid(entry.gid)).collect();
    for port in 1..=context.query_device()?.port_count {
        let port = context.query_port(port)?;
        if port.link_layer == LinkLayer::INFINIBAND {
            all.push(Address::Lid(port.lid));
        }
    }
    Ok(all)
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

/// The request of an active end, which owns its parts.
pub(crate) struct Request {
    address: Address,
    gid_type: GidType,
    endpoint: QueuePairEndpoint,
    private_data: Vec<u8>,
    port: u16,
}

impl Request {
    /// Creates the request of a queue pair. Both ends have the IP address of `to`, as they are on one host.
    pub(crate) fn new(
        endpoint: QueuePairEndpoint,
        to: SocketAddr,
        private_data: &[u8],
    ) -> Result<Self, Error> {
        let is_connected = matches!(endpoint.qp_type(), QueuePairType::RC | QueuePairType::UC);
        let (address, gid_type) =
            address_of(&endpoint).filter(|_| is_connected).ok_or(Error::QueuePair)?;
        let (ip, port) = (to.ip(), to.port());
        let mut data = vec![0; IpCmHeader::LEN];
        if let (Some(header), Some(place)) = (IpCmHeader::new(ip, ip, 0), data.first_chunk_mut()) {
            header.emit(place);
        }
        data.extend_from_slice(private_data);
        Ok(Self { address, gid_type, endpoint, private_data: data, port })
    }

    /// Returns the address of both ends, which have the same device.
    pub(crate) const fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn offer(&self) -> Offer<'_> {
        let [response, ack] = [RESPONSE_TIMEOUT, ACK_TIMEOUT]
            .map(|code| Timeout::from_code(code).unwrap_or_default());
        let is_unreliable = self.endpoint.qp_type() == QueuePairType::UC;
        Offer {
            service_id: service(self.port),
            qpn: self.endpoint.qpn(),
            psn: self.endpoint.psn(),
            responder_resources: self.endpoint.max_dest_rd_atomic(),
            initiator_depth: self.endpoint.max_rd_atomic(),
            remote_response_timeout: response,
            local_response_timeout: response,
            max_cm_retries: RETRIES,
            transport: if is_unreliable { Transport::Uc } else { Transport::Rc },
            flow_control: true,
            retry_count: PACKET_RETRIES,
            rnr_retry_count: PACKET_RETRIES,
            p_key: DEFAULT_PKEY,
            mtu_code: self.endpoint.mtu().code(),
            primary: path(self.address, ack),
            private_data: &self.private_data,
            ..Offer::default()
        }
    }

    /// Returns the peer's end, which a REP describes.
    pub(crate) fn peer(&self, answer: &Answer<'_>) -> QueuePairEndpoint {
        let peer = QueuePairEndpoint::new(answer.qpn, answer.psn)
            .with_mtu(self.endpoint.mtu())
            .with_rd_atomic(answer.initiator_depth, answer.responder_resources);
        let is_unreliable = self.endpoint.qp_type() == QueuePairType::UC;
        let peer = if is_unreliable { peer.with_unreliable_connection() } else { peer };
        at(peer, self.address, self.gid_type)
    }
}

fn path(address: Address, ack_timeout: Timeout) -> Path {
    let path = Path { hop_limit: HOP_LIMIT, subnet_local: true, ack_timeout, ..Path::default() };
    match address {
        Address::Lid(lid) => Path { local_lid: lid, remote_lid: lid, ..path },
        Address::Gid(gid) => Path {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: gid,
            remote_gid: gid,
            ..path
        },
        _ => path,
    }
}

fn at(endpoint: QueuePairEndpoint, address: Address, gid_type: GidType) -> QueuePairEndpoint {
    match address {
        Address::Lid(lid) => endpoint.with_lid(lid),
        Address::Gid(gid) => endpoint.with_gid(gid, gid_type),
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

/// Returns the peer's end, which a REQ describes, the destination's IP address, and the program's private data. Returns
/// `None` if these parts are invalid.
pub(super) fn requester<'a>(
    context: &Context,
    from: Address,
    offer: &Offer<'a>,
) -> Option<(QueuePairEndpoint, IpAddr, &'a [u8])> {
    let (header, private_data) = IpCmHeader::parse(offer.private_data)?;
    let peer = QueuePairEndpoint::new(offer.qpn, offer.psn)
        .with_mtu(offer.mtu()?)
        .with_rd_atomic(offer.initiator_depth, offer.responder_resources);
    let is_unreliable = offer.transport == Transport::Uc;
    let peer = if is_unreliable { peer.with_unreliable_connection() } else { peer };
    let gid_type = match from {
        Address::Gid(gid) => {
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
    Some((at(peer, from, gid_type), header.destination(), private_data))
}

/// Returns the reply of a passive end with this queue pair, which serves at most what its peer may request.
pub(super) fn answer<'a>(
    own: &QueuePairEndpoint,
    peer: &QueuePairEndpoint,
    private_data: &'a [u8],
) -> Answer<'a> {
    Answer {
        qpn: own.qpn(),
        psn: own.psn(),
        responder_resources: own.max_dest_rd_atomic().min(peer.max_rd_atomic()),
        initiator_depth: own.max_rd_atomic().min(peer.max_dest_rd_atomic()),
        flow_control: true,
        rnr_retry_count: PACKET_RETRIES,
        private_data,
        ..Answer::default()
    }
}
