//! Three processes, whose hosts are in a configuration file, wait for each other three times. Each waits for a line of
//! input before it enters the barrier. The code was written for the published crate `ibverbs-rs`. Only the `use` lines,
//! the choice of the device, the command line and the output differ, and `?` replaces `unwrap`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::group::network::{
    BarrierAlgorithm, ExchangeConfig, Exchanger, Node, NodeConfig, RawNetworkConfig,
};
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program};

/// Waits for two other ranks three times
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(help = "The file with the hosts of all ranks, such as examples/network.json")]
    network: PathBuf,
    #[arg(help = "The rank of this process: 0, 1 or 2")]
    rank: usize,
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help = "The limit of each wait")]
    limit: u64,
}

fn main() -> ExitCode {
    program(run)
}

/// Prints a line before and after each barrier. Returns the last line.
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
        .world_size(network_config.world_size())
        .barrier(BarrierAlgorithm::Centralized)
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

    for _ in 0..3 {
        print("Press enter...")?;
        let mut buffer = String::new();
        std::io::stdin().read_line(&mut buffer)?;
        print("Barrier start!")?;
        match node.rank() {
            0 => {
                node.barrier(&[0, 1, 2], limit)?;
            }
            1 => {
                node.barrier(&[0, 1, 2], limit)?;
            }
            2 => {
                node.barrier(&[0, 1, 2], limit)?;
            }
            _ => return Err(format!("Invalid rank: {rank}").into()),
        }
        print("Barrier end!")?;
    }
    Ok(format!("Rank {rank} has ended"))
}
