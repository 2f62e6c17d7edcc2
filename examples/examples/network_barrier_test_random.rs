//! Processes, whose hosts are in a configuration file, wait for each other many times. Rank 1 is late by a random time.
//! The code was written for the published crate `ibverbs-rs`. Only the `use` lines, the choice of the device, the
//! command line, the random numbers and the output differ. It does not wait for input, and `?` replaces `unwrap`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use rdma::group::network::{
    BarrierAlgorithm, ExchangeConfig, Exchanger, Node, NodeConfig, RawNetworkConfig,
};
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program};

/// Waits many times for other ranks, while rank 1 is late
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(help = "The file with the hosts of all ranks, such as examples/network.json")]
    network: PathBuf,
    #[arg(help = "The rank of this process")]
    rank: usize,
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 10_000, help = "The number of barriers")]
    barriers: u32,
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help = "The limit of each wait")]
    limit: u64,
}

fn main() -> ExitCode {
    program(run)
}

/// Prints a line after each barrier. Returns the last line.
pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let (rank, limit) = (arguments.rank, Duration::from_secs(arguments.limit));
    let json_network = fs::read_to_string(&arguments.network)?;

    let network_config = serde_json::from_str::<RawNetworkConfig>(&json_network)?.build()?;

    let node_config: &NodeConfig = network_config.get(rank).ok_or("no such rank")?;

    let ctx = open_device(&arguments.device)?;
    let pd = ctx.allocate_pd()?;

    let node = Node::builder()
        .pd(&pd)
        .rank(node_config.rankid)
        .barrier(BarrierAlgorithm::Dissemination)
        .world_size(network_config.world_size())
        .build()?;

    let endpoint = node.endpoint();

    let remote_endpoints = Exchanger::await_exchange_all(
        rank,
        &network_config,
        &endpoint,
        &ExchangeConfig::default(),
    )?;

    let remote_endpoints = node.gather_endpoints(remote_endpoints)?;

    let mut node = node.handshake(remote_endpoints)?;

    let all_nodes: Vec<_> = (0..node.world_size()).collect();

    for i in 0..arguments.barriers {
        if node.rank() == 1 {
            let delay_ns = fastrand::u64(10..10_000_000);
            thread::sleep(Duration::from_nanos(delay_ns));
        }

        node.barrier(all_nodes.as_slice(), limit)?;
        print(&format!("Waited barrier {i} successfully"))?;
    }
    Ok(format!("Rank {rank} has ended"))
}
