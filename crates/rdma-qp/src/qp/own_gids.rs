//! The GIDs of a queue pair's port, and those that its endpoint carries.

use rdma_mem::{Context, GidEntry};

use crate::endpoint::{EndpointGid, QueuePairEndpoint, class};
use crate::error::Error;
use crate::gid_choice::GidChoice;
use crate::gid_network::shares_prefix;

/// Returns the port's GIDs that `choice` allows, with their indices in the port's table, best first.
pub(crate) fn choose(
    context: &Context,
    port: u8,
    choice: GidChoice,
) -> Result<Vec<(EndpointGid, u8)>, Error> {
    of_table(&context.gid_table()?, port, choice.or_of_environment()?)
}

fn of_table(
    table: &[GidEntry],
    port: u8,
    choice: GidChoice,
) -> Result<Vec<(EndpointGid, u8)>, Error> {
    let usable = |entry: &GidEntry| {
        let gid = EndpointGid::new(entry.gid, entry.gid_type)
            .with_prefix_length(entry.prefix_length.unwrap_or(0));
        let index = u8::try_from(entry.index).ok()?;
        let chosen = match choice {
            GidChoice::ByPeer => !class::is_loopback_alias(gid.gid),
            GidChoice::Index(asked) => asked == index,
            GidChoice::Network(network) => network.contains(gid.gid),
        };
        Some((class::rank(&gid).filter(|_| chosen && entry.port == port)?, gid, index))
    };
    let mut gids: Vec<_> = table.iter().filter_map(usable).collect();
    let of_port = || table.iter().filter(|entry| entry.port == port);
    match choice {
        GidChoice::Index(index) if gids.is_empty() => {
            let indexes = of_port().filter_map(|entry| u8::try_from(entry.index).ok());
            Err(Error::NoSuchGid { port, index, indexes: indexes.collect() })
        }
        GidChoice::Network(network) if gids.is_empty() => {
            let table = of_port().map(|entry| entry.gid).collect();
            Err(Error::NoGidInNetwork { port, network, table })
        }
        _ => {
            // The sort is stable, so GIDs of the same rank keep their order from the table.
            gids.sort_by_key(|&(rank, ..)| rank);
            Ok(gids.into_iter().map(|(_, gid, index)| (gid, index)).collect())
        }
    }
}

/// Selects the port's GIDs that the endpoint carries. If the port has too many, the endpoint carries those that are
/// most likely to be chosen. These are the GID of the stream's address, the GIDs in the peer's network, and the best
/// GIDs by rank.
pub(crate) fn carry(endpoint: &mut QueuePairEndpoint, table: &mut [(EndpointGid, u8)]) {
    if let Some((own, peer)) = endpoint.stream {
        let is_of_peers_network = |gid: &EndpointGid| {
            class::names_a_network(gid.gid)
                && gid.gid.is_ipv4_mapped() == peer.is_ipv4_mapped()
                && gid.prefix_length > 0
                && shares_prefix(gid.gid, peer, gid.prefix_length)
        };
        table.sort_by_key(|(gid, _)| (gid.gid != own, !is_of_peers_network(gid)));
    }
    endpoint.gids = [EndpointGid::NONE; QueuePairEndpoint::MAX_GIDS];
    endpoint.gid_count = 0;
    for (place, (gid, _)) in endpoint.gids.iter_mut().zip(table) {
        *place = *gid;
        endpoint.gid_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use rdma_mem::GidType;
    use rdma_types::{Psn, Qpn};

    use super::*;

    fn gid(text: &str, prefix_length: u8) -> EndpointGid {
        EndpointGid::new(text.parse().unwrap(), GidType::ROCE_V2).with_prefix_length(prefix_length)
    }

    /// Returns 20 addresses, each in its own /24 network.
    fn networks() -> Vec<(EndpointGid, u8)> {
        (0..20).map(|n| (gid(&format!("::ffff:10.0.{n}.1"), 120), n)).collect()
    }

    fn carried(stream: Option<(&str, &str)>) -> Vec<String> {
        let mut endpoint = QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(1));
        if let Some((own, peer)) = stream {
            endpoint = endpoint.with_stream_addresses(own.parse().unwrap(), peer.parse().unwrap());
        }
        let mut table = networks();
        carry(&mut endpoint, &mut table);
        let gids = endpoint.gids();
        assert!(gids.iter().zip(&table).all(|(carried, (gid, _))| carried == gid));
        gids.iter().map(|gid| gid.gid.to_string()).collect()
    }

    #[test]
    fn an_endpoint_with_too_many_gids_carries_the_likely_ones() {
        assert_eq!(carried(None).len(), QueuePairEndpoint::MAX_GIDS);
        assert!(!carried(None).contains(&"::ffff:10.0.18.1".to_owned()));
        let of_stream = carried(Some(("10.0.19.1", "10.0.18.7")));
        assert_eq!(of_stream[..3], ["::ffff:10.0.19.1", "::ffff:10.0.18.1", "::ffff:10.0.0.1"]);
        assert_eq!(of_stream.len(), QueuePairEndpoint::MAX_GIDS);
    }
}
