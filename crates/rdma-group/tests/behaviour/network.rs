//! Nodes whose ranks are threads of this process.

mod barriers;
mod exchanges;
mod nodes;

use std::thread;

use rdma_group::network::{
    BarrierAlgorithm, ExchangeConfig, Exchanger, NetworkConfig, Node, NodeConfig, RawNetworkConfig,
};
use test_support::loopback;

use crate::ranks::{LIMIT, domain};

pub(crate) const ALGORITHMS: [BarrierAlgorithm; 3] =
    [BarrierAlgorithm::Centralized, BarrierAlgorithm::BinaryTree, BarrierAlgorithm::Dissemination];

/// Returns a configuration of ranks on this host, whose rank 0 can listen.
pub(crate) fn config(size: usize) -> NetworkConfig {
    let address = loopback::free_address();
    let node = |rankid| NodeConfig {
        hostname: address.ip().to_string(),
        port: address.port(),
        ibdev: "soft0".to_owned(),
        rankid,
        comment: String::new(),
    };
    (0..size).map(node).fold(NetworkConfig::builder(), RawNetworkConfig::add_node).build().unwrap()
}

pub(crate) fn limits() -> ExchangeConfig {
    ExchangeConfig { exchange_timeout: LIMIT, ..ExchangeConfig::default() }
}

/// Runs ranks as threads. Returns their results in rank order.
pub(crate) fn threads<T: Send>(size: usize, part: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|threads| {
        let part = &part;
        let ranks: Vec<_> = (0..size).map(|rank| threads.spawn(move || part(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs nodes as threads. Returns their results in rank order.
pub(crate) fn nodes<T: Send>(
    size: usize,
    algorithm: BarrierAlgorithm,
    part: impl Fn(Node) -> T + Sync,
) -> Vec<T> {
    let (pd, config) = (domain(), config(size));
    threads(size, |rank| {
        let builder = Node::builder().pd(&pd).rank(rank).world_size(size).barrier(algorithm);
        let node = builder.channels(|it| it.receive_timeout(LIMIT)).build().unwrap();
        let endpoint = node.endpoint();
        let all = Exchanger::await_exchange_all(rank, &config, &endpoint, &limits()).unwrap();
        let all = node.gather_endpoints(all).unwrap();
        part(node.handshake(all).unwrap())
    })
}
