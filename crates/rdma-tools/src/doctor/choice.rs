//! Findings about the GIDs that two ends would use.

use std::env;
use std::net::IpAddr;

use rdma::device::{Gid, GidType};
use rdma::qp::{EndpointGid, GidNetwork, GidRule, Psn, Qpn, QueuePairEndpoint};

use super::facts::{Port, PortGid};
use super::finding::{Finding, Severity};

/// Returns a port's endpoint, with GIDs for a peer at this address. `own` is this end's address in
/// a stream to the peer.
pub(crate) fn own_end(port: &Port, own: Option<IpAddr>, peer: IpAddr) -> QueuePairEndpoint {
    let mut gids: Vec<_> = port.gids.iter().filter(|gid| is_allowed(gid)).collect();
    // An endpoint has space only for a few GIDs, so the most likely ones come first.
    let of_peer = |gid: &PortGid| {
        let address = IpAddr::from(gid.gid.to_ipv6()).to_canonical();
        let length = gid
            .prefix_length
            .map(|length| if peer.is_ipv4() { length.saturating_sub(96) } else { length });
        let network = length.and_then(|length| GidNetwork::new(address, length));
        network.is_some_and(|network| network.contains(gid_of(peer)))
    };
    gids.sort_by_key(|gid| (!of_peer(gid), gid.gid_type != GidType::ROCE_V2));
    let end = gids.into_iter().fold(end(), |end, gid| {
        let carried = EndpointGid::new(gid.gid, gid.gid_type);
        end.with_endpoint_gid(carried.with_prefix_length(gid.prefix_length.unwrap_or(0)))
    });
    own.map_or(end, |own| end.with_stream_addresses(own, peer))
}

/// Returns the endpoint of a peer if only its address is known. The address is assumed to be a GID
/// of the peer.
pub(crate) fn assumed_end(own: Option<IpAddr>, peer: IpAddr) -> QueuePairEndpoint {
    let end = end().with_gid(gid_of(peer), GidType::ROCE_V2);
    own.map_or(end, |own| end.with_stream_addresses(peer, own))
}

/// Reports which GIDs the two ends would use. `how` describes where the peer's GIDs come from.
pub(crate) fn finding(
    port: &Port,
    (own, peer): (&QueuePairEndpoint, &QueuePairEndpoint),
    how: &str,
) -> Finding {
    let found = |severity, text| Finding::new("gid-choice", severity, format!("{how}: {text}"));
    let cure = "give both interfaces addresses in the same network, or choose one with \
        RDMA_GID_NETWORK; `ip route get PEER` shows which interface leads there";
    let Some((own, peer, rule)) = own.choose_gids(peer) else {
        let text = "no GID of this port has the type and family of one of the peer's".to_owned();
        return found(Severity::Error, text).cure(cure);
    };
    let entry = port.gids.iter().find(|gid| (gid.gid, gid.gid_type) == (own.gid, own.gid_type));
    let index = entry.map_or("?".to_owned(), |gid| gid.index.to_string());
    let network = entry.and_then(PortGid::network).unwrap_or("an unknown network".to_owned());
    let interface = entry.and_then(|gid| gid.interface.clone());
    let interface = interface.unwrap_or("no interface".to_owned());
    let text = format!(
        "GID {index}, {} ({}, {interface}, {network}), to {}",
        own.gid, own.gid_type, peer.gid
    );
    match rule {
        _ if own.gid == peer.gid => {
            found(Severity::Ok, format!("{text}: both ends use the same port"))
        }
        GidRule::Stream => found(
            Severity::Ok,
            format!("{text}: they are the addresses of the TCP stream between the two ends"),
        ),
        GidRule::Network => found(Severity::Ok, format!("{text}: they are in the same network")),
        _ => found(
            Severity::Warning,
            format!(
                "{text}: no two are in the same network, so they are the best by type and class, \
                 which works only if packets are routed between them"
            ),
        )
        .cure(cure),
    }
}

/// Returns true if the environment variables allow this GID; see [`rdma::qp::GidChoice`].
fn is_allowed(gid: &PortGid) -> bool {
    let variable = |name| env::var(name).ok();
    if let Some(index) = variable("RDMA_GID_INDEX") {
        return index.parse() == Ok(gid.index);
    }
    let network = variable("RDMA_GID_NETWORK").map(|text| text.parse::<GidNetwork>());
    network.is_none_or(|network| network.is_ok_and(|network| network.contains(gid.gid)))
}

fn end() -> QueuePairEndpoint {
    QueuePairEndpoint::new(Qpn::masked(2), Psn::masked(0))
}

fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid::from_ipv4(address),
        IpAddr::V6(address) => Gid::from(address),
    }
}
