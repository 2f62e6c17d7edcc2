//! The addresses that ranks exchange before they connect.

use std::fmt;

use rdma_channel::{PeerRemoteMemoryRegion, QueuePairEndpoint, RemoteMemoryRegion};
use serde::{Deserialize, Serialize};

/// The addresses of a rank's queues and of its barrier. All other ranks need them.
///
/// Created by [`PreparedNode::endpoint`](super::PreparedNode::endpoint), and sent to the other ranks by an
/// [`Exchanger`](super::Exchanger) or by other means.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalEndpoint {
    pub(super) rank: usize,
    /// An endpoint for each rank.
    pub(super) endpoints: Box<[QueuePairEndpoint]>,
    pub(super) barrier: RemoteMemoryRegion,
}

/// Formats the rank and the number of ranks.
impl fmt::Debug for LocalEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalEndpoint(rank {} of {})", self.rank, self.endpoints.len())
    }
}

/// The addresses of all ranks, after [`PreparedNode::gather_endpoints`](super::PreparedNode::gather_endpoints) has
/// checked them.
#[derive(Clone, Debug)]
pub struct RemoteEndpoints {
    /// The endpoint of each rank for this one.
    pub(super) channels: Vec<QueuePairEndpoint>,
    pub(super) barriers: Box<[PeerRemoteMemoryRegion]>,
}

impl RemoteEndpoints {
    /// Selects the endpoints for a rank. There must be one of each rank.
    pub(super) fn gather(
        rank: usize,
        world_size: usize,
        endpoints: impl IntoIterator<Item = LocalEndpoint>,
    ) -> Result<Self, EndpointsError> {
        let mut places = vec![None; world_size];
        for LocalEndpoint { rank: of, endpoints, barrier } in endpoints {
            let theirs = endpoints.len();
            let Some(place) = places.get_mut(of) else {
                return Err(EndpointsError::OutOfBounds { rank: of, world_size });
            };
            let Some(channel) = endpoints.get(rank).filter(|_| theirs == world_size) else {
                return Err(EndpointsError::WorldSize { rank: of, theirs, ours: world_size });
            };
            let barrier = PeerRemoteMemoryRegion::new(of, barrier);
            if place.replace((*channel, barrier)).is_some() {
                return Err(EndpointsError::Duplicate { rank: of });
            }
        }
        let missing = places.iter().enumerate().filter(|(_, place)| place.is_none());
        let ranks: Vec<_> = missing.map(|(rank, _)| rank).collect();
        if !ranks.is_empty() {
            return Err(EndpointsError::Missing { ranks });
        }
        let (channels, barriers): (_, Vec<_>) = places.into_iter().flatten().unzip();
        Ok(Self { channels, barriers: barriers.into() })
    }
}

/// An error of [`PreparedNode::gather_endpoints`](super::PreparedNode::gather_endpoints).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointsError {
    /// A rank does not exist.
    #[error("the endpoints of rank {rank} do not belong to this network of {world_size} ranks")]
    OutOfBounds {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// Two of the endpoints are of the same rank.
    #[error("the endpoints of rank {rank} were passed twice, or two processes have this rank")]
    Duplicate {
        /// The rank.
        rank: usize,
    },
    /// Ranks are missing.
    #[error("the endpoints of ranks {ranks:?} are missing")]
    Missing {
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// A rank was built for another number of ranks.
    #[error("rank {rank} was built for {theirs} ranks, but this rank for {ours}")]
    WorldSize {
        /// The other rank.
        rank: usize,
        /// Its number of ranks.
        theirs: usize,
        /// The number of ranks of this rank.
        ours: usize,
    },
}

rdma_types::debug_messages!(enum EndpointsError {
    OutOfBounds { rank, world_size }, Duplicate { rank }, Missing { ranks },
    WorldSize { rank, theirs, ours },
});

#[cfg(test)]
mod tests {
    use rdma_channel::{PacketSequenceNumber, Qpn};

    use super::*;

    /// Returns the endpoints of a rank, which has this number of ranks.
    fn local(rank: usize, world_size: usize) -> LocalEndpoint {
        let qpn = |peer: usize| Qpn::masked(u32::try_from(100 * rank + peer).unwrap());
        let endpoint = |peer| QueuePairEndpoint::new(qpn(peer), PacketSequenceNumber::masked(1));
        let barrier = RemoteMemoryRegion::new(0x1000 * rank as u64, 48, 7);
        LocalEndpoint { rank, endpoints: (0..world_size).map(endpoint).collect(), barrier }
    }

    fn gather(locals: &[(usize, usize)]) -> Result<RemoteEndpoints, EndpointsError> {
        let locals = locals.iter().map(|(rank, world_size)| local(*rank, *world_size));
        RemoteEndpoints::gather(1, 3, locals)
    }

    #[test]
    fn each_rank_provides_the_endpoint_for_this_one() {
        let all = gather(&[(2, 3), (0, 3), (1, 3)]).unwrap();
        let numbers: Vec<_> = all.channels.iter().map(|channel| channel.qpn().get()).collect();
        assert_eq!(numbers, [1, 101, 201]);
        let memory = all.barriers.iter().map(|it| (it.peer(), it.remote().address()));
        assert!(memory.eq([(0, 0), (1, 0x1000), (2, 0x2000)]));
    }

    #[test]
    fn wrong_ranks_are_named() {
        use EndpointsError::*;
        for (locals, error) in [
            (&[(3, 3)][..], OutOfBounds { rank: 3, world_size: 3 }),
            (&[(0, 3), (1, 3), (0, 3)], Duplicate { rank: 0 }),
            (&[(1, 3)], Missing { ranks: vec![0, 2] }),
            (&[(0, 3), (2, 4)], WorldSize { rank: 2, theirs: 4, ours: 3 }),
            (&[(0, 1)], WorldSize { rank: 0, theirs: 1, ours: 3 }),
        ] {
            assert_eq!(gather(locals).unwrap_err(), error, "{locals:?}");
        }
    }

    #[test]
    fn the_serialised_form_does_not_change() {
        let text = serde_json::to_string(&local(1, 1)).unwrap();
        let expected = concat!(
            r#"{"rank":1,"endpoints":[{"version":2,"qp_type":2,"qpn":100,"psn":1,"qkey":0,"lid":0,"#,
            r#""link_layer":0,"grh_required":false,"mtu":3,"max_rd_atomic":1,"max_dest_rd_atomic":1,"#,
            r#""gids":[],"stream":null}],"barrier":{"addr":4096,"length":48,"rkey":7}}"#,
        );
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<LocalEndpoint>(&text).unwrap(), local(1, 1));
    }
}
