//! Nodes: connections between the ranks of a configuration file, under the names that ibverbs-rs 0.4 gives them.
//!
//! A [`Node`] has a channel to each rank, and barriers. It is for programs that post their own requests, and for those
//! that were written for `ibverbs_rs::network`. Others are simpler with a [`Group`](crate::Group), which needs no
//! configuration file, has collectives, and detects ranks that die.
//!
//! 1. Each rank reads the same [`RawNetworkConfig`], and checks it with [`build`](RawNetworkConfig::build).
//! 2. [`Node::builder`] creates the queues, and an [`Exchanger`] exchanges their endpoints.
//! 3. [`PreparedNode::gather_endpoints`] checks the endpoints, and [`PreparedNode::handshake`] connects to them.
//!
//! # Examples
//! Three ranks, which could be processes on three hosts:
//! ```
//! use std::time::Duration;
//! use rdma_group::network::{ExchangeConfig, Exchanger, NetworkConfig, Node, RawNetworkConfig};
//!
//! type Failure = Box<dyn std::error::Error + Send + Sync>;
//!
//! fn run(rank: usize, config: &NetworkConfig) -> Result<(), Failure> {
//!     rdma_soft::install();
//!     let pd = rdma_mem::open_device(&config[rank].ibdev)?.allocate_pd()?;
//!     let node = Node::builder().pd(&pd).rank(rank).world_size(config.world_size()).build()?;
//!     let limits = ExchangeConfig::default();
//!     let endpoints = Exchanger::await_exchange_all(rank, config, &node.endpoint(), &limits)?;
//!     let endpoints = node.gather_endpoints(endpoints)?;
//!     let mut node = node.handshake(endpoints)?;
//!     node.barrier(&[0, 1, 2], Duration::from_secs(60))?;
//!     Ok(())
//! }
//!
//! let json = r#"{ "hosts": [
//!     { "hostname": "127.76.0.1", "port": 7471, "ibdev": "soft0", "rankid": 0 },
//!     { "hostname": "127.76.0.1", "port": 7472, "ibdev": "soft0", "rankid": 1 },
//!     { "hostname": "127.76.0.1", "port": 7473, "ibdev": "soft0", "rankid": 2 }
//! ] }"#;
//! let config = serde_json::from_str::<RawNetworkConfig>(json)?.build()?;
//! std::thread::scope(|threads| {
//!     let ranks = [0, 1, 2].map(|rank| threads.spawn({ let config = &config; move || run(rank, config) }));
//!     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
//! })?;
//! # Ok::<(), Failure>(())
//! ```

mod barrier;
mod builder;
mod config;
mod endpoints;
mod exchanger;
mod node;
mod scope;

pub use self::barrier::{Barrier, BarrierError, PreparedBarrier};
pub use self::builder::{CreateNode, NodeBuilder, NodeWithoutPd};
pub use self::config::{NetworkConfig, NetworkConfigError, NodeConfig, RawNetworkConfig};
pub use self::endpoints::{EndpointsError, LocalEndpoint, RemoteEndpoints};
pub use self::exchanger::{ExchangeConfig, ExchangeError, Exchanger};
pub use self::node::{Node, PreparedNode};
pub use self::scope::NodeScope;

pub use crate::schedule::BarrierAlgorithm;
