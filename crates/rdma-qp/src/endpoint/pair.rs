//! The pair of GIDs that two ends use.
//!
//! The choice depends only on the two endpoints, not on the order of their GIDs, so both ends choose the same pair.

use rdma_mem::{Gid, GidType, LinkLayer};

use crate::endpoint::class::{common_rank, names_a_network};
use crate::endpoint::{EndpointGid, QueuePairEndpoint};
use crate::gid_network::shares_prefix;

/// The rule that two ends used to choose their GIDs; see [`GidChoice::ByPeer`](crate::GidChoice::ByPeer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GidRule {
    /// The two addresses of the stream over which the ends exchanged their endpoints.
    Stream,
    /// Two addresses in the same network, according to the netmasks of their interfaces.
    Network,
    /// Two addresses of the best type and class that both ends support.
    Class,
}

/// The chosen GIDs, as indices into the lists of the two endpoints, and the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) own: usize,
    pub(crate) peer: usize,
    pub(crate) rule: GidRule,
}

/// Returns the GIDs that the two ends use, if any GID of one end matches one of the other.
///
/// An address that both ends have, such as the address of a bridge on each host or a virtual address, leads each host
/// to itself. It counts only if both ends use the same port. This is assumed in two cases: their tables are equal, or
/// no other pair is left and one table is a subset of the other. In the second case, the smaller table is assumed to be
/// restricted by a `GidChoice` or by the program.
pub(crate) fn choose(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> Option<Pair> {
    let (is_part, is_whole) = (holds(own, peer), holds(peer, own));
    if is_part && is_whole {
        return best(own, peer, |_, _| true);
    }
    let has = |end: &QueuePairEndpoint, gid: Gid| end.gids().iter().any(|other| other.gid == gid);
    let apart = best(own, peer, |a, b| !has(peer, a.gid) && !has(own, b.gid));
    let is_one_port = is_part || is_whole;
    apart.or_else(|| best(own, peer, |a, b| is_one_port && a.gid == b.gid))
}

/// Returns true if `all` contains all GIDs of `some`.
fn holds(all: &QueuePairEndpoint, some: &QueuePairEndpoint) -> bool {
    let has = |gid: &EndpointGid| {
        all.gids().iter().any(|other| (other.gid, other.gid_type) == (gid.gid, gid.gid_type))
    };
    some.gids().iter().all(has)
}

/// Returns the best pair that `counts` accepts.
fn best(
    own: &QueuePairEndpoint,
    peer: &QueuePairEndpoint,
    counts: impl Fn(&EndpointGid, &EndpointGid) -> bool,
) -> Option<Pair> {
    let ethernet = own.link_layer() == LinkLayer::ETHERNET;
    let stream = common_stream(own, peer);
    // Smaller is better.
    let key = |a: &EndpointGid, b: &EndpointGid| {
        let kind = common_rank(a, b)?;
        let rule = if stream == Some((a.gid, b.gid)) {
            GidRule::Stream
        } else if are_of_one_network(a, b) {
            GidRule::Network
        } else {
            GidRule::Class
        };
        // An unknown prefix length usually means that no interface in the network namespace of the process has the
        // address. Such an address may belong to another container, so it ranks lower.
        let unknown = [a, b].iter().filter(|gid| gid.prefix_length == 0).count();
        Some((rule, kind, unknown, a.gid.min(b.gid), a.gid.max(b.gid)))
    };
    let pairs = own.gids().iter().enumerate().flat_map(|(own_place, a)| {
        peer.gids().iter().enumerate().map(move |(peer_place, b)| ((own_place, a), (peer_place, b)))
    });
    let of_link = |gid: &EndpointGid| (gid.gid_type != GidType::IB) == ethernet;
    pairs
        .filter(|((_, a), (_, b))| of_link(a) && counts(a, b))
        .filter_map(|((own, a), (peer, b))| Some((key(a, b)?, own, peer)))
        .min()
        .map(|((rule, ..), own, peer)| Pair { own, peer, rule })
}

/// Returns the addresses of the stream if both ends see the same ones. With network address translation (NAT), they do
/// not.
fn common_stream(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> Option<(Gid, Gid)> {
    let (here, there) = own.stream?;
    (peer.stream == Some((there, here))).then_some((here, there))
}

fn are_of_one_network(a: &EndpointGid, b: &EndpointGid) -> bool {
    let is_ipv4 = a.gid.is_ipv4_mapped();
    if is_ipv4 != b.gid.is_ipv4_mapped() || !names_a_network(a.gid) || !names_a_network(b.gid) {
        return false;
    }
    // If the interfaces have different prefix lengths, the longer prefix is used, because it covers fewer addresses. An
    // unknown prefix length is 0, so the other end's length is used.
    let length = a.prefix_length.max(b.prefix_length);
    let least = if is_ipv4 { 96 } else { 0 };
    length > least && shares_prefix(a.gid, b.gid, length)
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use rdma_types::{Psn, Qpn};

    use super::*;

    /// Returns a port with RoCE v2 GIDs. They are written like interface addresses: `10.0.0.1/24`, or without a length.
    fn port(addresses: &[&str]) -> QueuePairEndpoint {
        let end = QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(1));
        addresses.iter().fold(end, |end, text| {
            let (address, length) = text.split_once('/').unwrap_or((text, "0"));
            let address: std::net::IpAddr = address.parse().unwrap();
            let length: u8 = length.parse().unwrap();
            let gid = EndpointGid::new(crate::gid_network::gid_of(address), GidType::ROCE_V2);
            let length = if length > 0 && address.is_ipv4() { length + 96 } else { length };
            end.with_endpoint_gid(gid.with_prefix_length(length))
        })
    }

    fn met(end: QueuePairEndpoint, here: &str, there: &str) -> QueuePairEndpoint {
        end.with_stream_addresses(here.parse().unwrap(), there.parse().unwrap())
    }

    /// Checks that both ends make the same choice, and returns the choice as text.
    fn chosen(a: &QueuePairEndpoint, b: &QueuePairEndpoint) -> (String, String, GidRule) {
        let (ab, ba) = (choose(a, b).unwrap(), choose(b, a).unwrap());
        let gids = (a.gids()[ab.own].gid, b.gids()[ab.peer].gid);
        assert_eq!(gids, (a.gids()[ba.peer].gid, b.gids()[ba.own].gid));
        assert_eq!(ab.rule, ba.rule);
        let text = |gid: Gid| gid.to_string().trim_start_matches("::ffff:").to_owned();
        (text(gids.0), text(gids.1), ab.rule)
    }

    fn expect(found: (String, String, GidRule), own: &str, peer: &str, rule: GidRule) {
        assert_eq!(found, (own.to_owned(), peer.to_owned(), rule));
    }

    #[test]
    fn addresses_of_one_network_go_before_the_first_of_the_tables() {
        let found = chosen(
            &port(&["192.168.1.1/24", "10.0.0.1/24"]),
            &port(&["10.0.0.2/24", "192.168.2.2/24"]),
        );
        expect(found, "10.0.0.1", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn a_bridge_that_both_hosts_have_is_no_way_between_them() {
        let bridge = "172.17.0.1/16";
        let found = chosen(&port(&[bridge, "10.0.0.3/24"]), &port(&[bridge, "10.0.0.2/24"]));
        expect(found, "10.0.0.3", "10.0.0.2", GidRule::Network);
        let found = chosen(&port(&[bridge, "10.0.0.3/24"]), &port(&["10.0.0.2"]));
        expect(found, "10.0.0.3", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn a_virtual_address_of_two_hosts_is_not_chosen() {
        let found =
            chosen(&port(&["10.0.0.9/32", "10.0.0.1/24"]), &port(&["10.0.0.2/24", "10.0.0.9/32"]));
        expect(found, "10.0.0.1", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn addresses_of_both_hosts_are_not_chosen_crosswise() {
        let bridges = ["172.17.0.1/16", "172.17.0.2/16"];
        let hosts = [bridges.as_slice(), &["192.168.1.1/24"]].concat();
        let others = [&["192.168.9.2/24"], bridges.as_slice()].concat();
        let found = chosen(&port(&hosts), &port(&others));
        expect(found, "192.168.1.1", "192.168.9.2", GidRule::Class);
        let others = [&["240.0.0.2"], bridges.as_slice()].concat();
        let found = chosen(&port(&[bridges.as_slice(), &["240.0.0.1"]].concat()), &port(&others));
        expect(found, "240.0.0.1", "240.0.0.2", GidRule::Class);
    }

    #[test]
    fn an_end_that_is_restricted_meets_another_one_of_its_port() {
        let table = port(&["10.0.0.2/24", "10.0.0.1/24", "10.0.0.3/24"]);
        let found = chosen(&met(table, "10.9.9.1", "10.9.9.1"), &port(&["10.0.0.2/24"]));
        expect(found, "10.0.0.2", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn two_queue_pairs_of_one_port_use_one_address() {
        let table = port(&["10.0.0.2/24", "10.0.0.1/24", "fe80::1/64"]);
        expect(chosen(&table, &table), "10.0.0.1", "10.0.0.1", GidRule::Network);
        let told = port(&["10.0.0.2"]);
        expect(chosen(&table, &told), "10.0.0.2", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn the_addresses_of_the_stream_go_first() {
        let (a, b) = (port(&["10.0.0.1/24", "10.1.0.1/24"]), port(&["10.0.0.2/24", "10.2.0.2/24"]));
        let found = chosen(&met(a, "10.1.0.1", "10.2.0.2"), &met(b, "10.2.0.2", "10.1.0.1"));
        expect(found, "10.1.0.1", "10.2.0.2", GidRule::Stream);
    }

    #[test]
    fn a_stream_that_is_translated_does_not_count() {
        let (a, b) = (port(&["10.0.0.1/24", "10.1.0.1/24"]), port(&["10.0.0.2/24", "10.2.0.2/24"]));
        let found = chosen(&met(a, "10.1.0.1", "10.2.0.2"), &met(b, "10.2.0.2", "203.0.113.5"));
        expect(found, "10.0.0.1", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn a_stream_over_another_network_does_not_count() {
        let (a, b) = (port(&["10.0.0.1/24"]), port(&["10.0.0.2/24"]));
        let found = chosen(&met(a, "192.0.2.1", "192.0.2.2"), &met(b, "192.0.2.2", "192.0.2.1"));
        expect(found, "10.0.0.1", "10.0.0.2", GidRule::Network);
    }

    #[test]
    fn an_address_of_another_container_ranks_below_those_of_this_one() {
        let found = chosen(&port(&["26.208.8.250", "26.208.8.252/24"]), &port(&["26.208.9.7/24"]));
        expect(found, "26.208.8.252", "26.208.9.7", GidRule::Class);
    }

    #[test]
    fn every_link_has_the_link_local_prefix() {
        let found =
            chosen(&port(&["fe80::1/64", "fd00:1::1/64"]), &port(&["fe80::2/64", "fd00:2::1/64"]));
        expect(found, "fd00:1::1", "fd00:2::1", GidRule::Class);
    }

    #[test]
    fn loopback_addresses_are_those_at_which_devices_listen() {
        let (a, b) = (port(&["127.0.0.2/8", "127.177.1.2"]), port(&["127.0.0.1/8", "127.130.1.2"]));
        expect(chosen(&a, &b), "127.0.0.2", "127.0.0.1", GidRule::Class);
    }
}
