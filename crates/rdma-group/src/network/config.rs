//! Configuration files: the ranks of a program, and their hosts.

use std::ops::Deref;
use std::slice;

use serde::{Deserialize, Serialize};

/// A rank of a [`NetworkConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// The name or IP address of the host.
    pub hostname: String,
    /// The TCP port at which the rank listens during an exchange. Only rank 0 listens.
    pub port: u16,
    /// The name of the RDMA device, for example `mlx5_0`.
    pub ibdev: String,
    /// The rank. The ranks are consecutive numbers from 0.
    pub rankid: usize,
    /// A text for people. If it is empty, it is not serialised.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

/// A configuration that was not checked yet. [`build`](Self::build) checks it.
///
/// The serialised form is the same as in ibverbs-rs. `comment` is optional, and unknown fields are ignored.
///
/// # Examples
/// ```
/// use rdma_group::network::RawNetworkConfig;
///
/// let json = r#"{ "hosts": [
///     { "hostname": "node2", "port": 10000, "ibdev": "mlx5_0", "rankid": 1, "comment": "a spare" },
///     { "hostname": "node1", "port": 10000, "ibdev": "mlx5_0", "rankid": 0 }
/// ] }"#;
/// let config = serde_json::from_str::<RawNetworkConfig>(json)?.build()?;
/// assert_eq!((config.world_size(), &*config[1].hostname), (2, "node2"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawNetworkConfig {
    hosts: Vec<NodeConfig>,
}

impl RawNetworkConfig {
    /// Appends a rank. The order of the ranks has no effect.
    #[must_use]
    pub fn add_node(mut self, node: NodeConfig) -> Self {
        self.hosts.push(node);
        self
    }

    /// Removes all ranks except the first `num_nodes` ones, in the order in which they were added.
    #[must_use]
    pub fn truncate(mut self, num_nodes: usize) -> Self {
        self.hosts.truncate(num_nodes);
        self
    }

    /// Checks that the ranks are consecutive numbers from 0, and sorts them.
    ///
    /// # Errors
    /// The first rank that is wrong, in rank order.
    pub fn build(self) -> Result<NetworkConfig, NetworkConfigError> {
        let Self { mut hosts } = self;
        hosts.sort_by_key(|node| node.rankid);
        if hosts.is_empty() {
            return Err(NetworkConfigError::EmptyNetwork);
        }
        let wrong = hosts.iter().enumerate().find(|(rank, node)| node.rankid != *rank);
        match wrong {
            None => Ok(NetworkConfig { hosts }),
            Some((0, _)) => Err(NetworkConfigError::FirstRankNotZero),
            Some((rank, node)) if node.rankid < rank => {
                Err(NetworkConfigError::DuplicatedRank { dup_rank: node.rankid })
            }
            Some((rank, _)) => Err(NetworkConfigError::NonSequentialRanks { gap_rank: rank }),
        }
    }
}

/// The ranks of a program, in order. Dereferences to a slice of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    hosts: Vec<NodeConfig>,
}

impl NetworkConfig {
    /// Returns an empty configuration, to which ranks can be added.
    ///
    /// # Examples
    /// ```
    /// use rdma_group::network::{NetworkConfig, NodeConfig};
    ///
    /// let node = |rankid| NodeConfig {
    ///     hostname: format!("node{rankid}"),
    ///     port: 10_000,
    ///     ibdev: "mlx5_0".to_owned(),
    ///     rankid,
    ///     comment: String::new(),
    /// };
    /// let config = NetworkConfig::builder().add_node(node(0)).add_node(node(1)).build()?;
    /// assert_eq!(config.world_size(), 2);
    /// # Ok::<(), rdma_group::network::NetworkConfigError>(())
    /// ```
    #[must_use]
    pub fn builder() -> RawNetworkConfig {
        RawNetworkConfig::default()
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.hosts.len()
    }

    /// Returns these ranks with their hosts.
    pub(super) fn with_hosts(&self, ranks: Vec<usize>) -> Vec<(usize, String)> {
        ranks.into_iter().map(|rank| (rank, self.host(rank))).collect()
    }

    /// Returns the name of a rank's host; empty if there is no such rank.
    pub(super) fn host(&self, rank: usize) -> String {
        self.get(rank).map(|node| node.hostname.clone()).unwrap_or_default()
    }
}

impl Deref for NetworkConfig {
    type Target = [NodeConfig];

    fn deref(&self) -> &[NodeConfig] {
        &self.hosts
    }
}

impl<'a> IntoIterator for &'a NetworkConfig {
    type Item = &'a NodeConfig;
    type IntoIter = slice::Iter<'a, NodeConfig>;

    fn into_iter(self) -> Self::IntoIter {
        self.hosts.iter()
    }
}

/// An error of [`RawNetworkConfig::build`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkConfigError {
    /// The configuration has no ranks.
    #[error("the configuration has no hosts")]
    EmptyNetwork,
    /// The lowest rank is not 0.
    #[error("the configuration has no host with `rankid` 0: number the ranks from 0")]
    FirstRankNotZero,
    /// A rank between two others is missing.
    #[error("the configuration has no host with `rankid` {gap_rank}, but hosts with higher ones")]
    NonSequentialRanks {
        /// The lowest rank that is missing.
        gap_rank: usize,
    },
    /// Two hosts have the same rank.
    #[error("the configuration has two hosts with `rankid` {dup_rank}")]
    DuplicatedRank {
        /// The rank.
        dup_rank: usize,
    },
}

rdma_types::debug_messages!(enum NetworkConfigError {
    EmptyNetwork, FirstRankNotZero, NonSequentialRanks { gap_rank }, DuplicatedRank { dup_rank },
});

#[cfg(test)]
mod tests {
    use super::*;

    fn built(ranks: &[usize]) -> Result<NetworkConfig, NetworkConfigError> {
        let nodes = ranks.iter().map(|rank| NodeConfig {
            hostname: format!("node{rank}"),
            port: 10_000,
            ibdev: "mlx5_0".to_owned(),
            rankid: *rank,
            comment: String::new(),
        });
        nodes.fold(NetworkConfig::builder(), RawNetworkConfig::add_node).build()
    }

    #[test]
    fn ranks_are_sorted() {
        let config = built(&[2, 0, 1]).unwrap();
        let hosts: Vec<_> = config.into_iter().map(|node| &*node.hostname).collect();
        assert_eq!(hosts, ["node0", "node1", "node2"]);
        assert_eq!((config.world_size(), config.len(), config[2].rankid), (3, 3, 2));
        assert!(built(&[0]).is_ok());
    }

    #[test]
    fn the_first_wrong_rank_is_the_error() {
        use NetworkConfigError::*;
        for (ranks, error) in [
            (&[][..], EmptyNetwork),
            (&[1, 2], FirstRankNotZero),
            (&[1, 1], FirstRankNotZero),
            (&[0, 2], NonSequentialRanks { gap_rank: 1 }),
            (&[0, 0], DuplicatedRank { dup_rank: 0 }),
            (&[0, 3, 3], NonSequentialRanks { gap_rank: 1 }),
            (&[0, 1, 1, 3], DuplicatedRank { dup_rank: 1 }),
        ] {
            assert_eq!(built(ranks).unwrap_err(), error, "{ranks:?}");
        }
    }

    /// The files of programs for ibverbs-rs have this form.
    #[test]
    fn the_serialised_form_does_not_change() {
        let json = r#"{"hosts":[{"hostname":"a","port":1,"ibdev":"mlx5_0","rankid":0},{"hostname":"b","port":65535,"ibdev":"soft0","rankid":1,"comment":"spare"}]}"#;
        let raw: RawNetworkConfig = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&raw).unwrap(), json);
        assert_eq!(raw.clone().truncate(1).build().unwrap().world_size(), 1);
        let [first, second] = raw.build().unwrap().hosts.try_into().unwrap();
        assert_eq!((&*first.comment, &*second.comment), ("", "spare"));
        assert_eq!((second.port, &*second.ibdev), (65535, "soft0"));
        let unknown = r#"{"hosts":[],"site":"x"}"#;
        assert!(serde_json::from_str::<RawNetworkConfig>(unknown).is_ok());
        let missing = r#"{"hosts":[{"hostname":"a","port":1,"ibdev":"mlx5_0"}]}"#;
        let error = serde_json::from_str::<RawNetworkConfig>(missing).unwrap_err();
        assert!(error.to_string().contains("`rankid`"), "{error}");
    }
}
