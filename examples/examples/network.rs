//! Three processes whose hosts are in a configuration file. Ranks 1 and 2 send four bytes each to rank 0. The code was
//! written for the published crate `ibverbs-rs`. Only the `use` lines, the choice of the device, the command line and
//! the output differ, and `?` replaces `unwrap`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rdma::group::network::{ExchangeConfig, Exchanger, Node, NodeConfig, RawNetworkConfig};
use rdma::prelude::*;
use rdma_examples_common::{Failure, bytes, program};

/// Sends four bytes from each of two ranks to rank 0
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(help = "The file with the hosts of all ranks, such as examples/network.json")]
    network: PathBuf,
    #[arg(help = "The rank of this process: 0, 1 or 2")]
    rank: usize,
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
}

fn main() -> ExitCode {
    program(run)
}

/// Returns the contents of rank 0's memory before and after the transfers. Other ranks return nothing.
pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let rank = arguments.rank;
    let json_network = fs::read_to_string(&arguments.network)?;

    let network_config = serde_json::from_str::<RawNetworkConfig>(&json_network)?.build()?;

    let node_config: &NodeConfig = network_config.get(rank).ok_or("no such rank")?;

    let ctx = open_device(&arguments.device)?;
    let pd = ctx.allocate_pd()?;

    let node = Node::builder()
        .pd(&pd)
        .rank(node_config.rankid)
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

    match node.rank() {
        0 => {
            let mut mem = [0u8; 8];
            let before = bytes(&mem);
            let mr = node.pd().register_local_mr_slice(&mem)?;
            node.receive(PeerReceiveWorkRequest::new(
                1,
                &mut [mr.scatter_element(&mut mem[0..4])],
            ))?;
            node.receive(PeerReceiveWorkRequest::new(
                2,
                &mut [mr.scatter_element(&mut mem[4..8])],
            ))?;
            return Ok(format!("Mem before: {before}\nMem after: {}", bytes(&mem)));
        }
        1 => {
            let mem = [1u8; 4];
            let mr = node.pd().register_local_mr_slice(&mem)?;
            node.send(PeerSendWorkRequest::new(0, &[mr.gather_element(&mem)]))?;
        }
        2 => {
            let mem = [2u8; 4];
            let mr = node.pd().register_local_mr_slice(&mem)?;
            node.send(PeerSendWorkRequest::new(0, &[mr.gather_element(&mem)]))?;
        }
        _ => return Err(format!("Invalid rank: {rank}").into()),
    }
    Ok(format!("Rank {rank} has sent"))
}
