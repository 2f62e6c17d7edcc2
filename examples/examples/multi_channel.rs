//! Three channels, each connected to itself. The second one sends four bytes within a scope. The
//! code was written for the published crate `ibverbs-rs`. Only the `use` lines, the choice of the
//! device and the output differ, and `?` replaces `unwrap`. Since each channel is its own peer, the
//! program has only one end and one process.

use std::process::ExitCode;

use clap::Parser;
use rdma::prelude::*;
use rdma_examples_common::{Failure, bytes, program};

/// Sends four bytes through one of three channels
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
}

fn main() -> ExitCode {
    program(run)
}

/// Returns the contents of the memory before and after the transfer.
pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let ctx = open_device(&arguments.device)?;
    let pd = ctx.allocate_pd()?;

    let multi_channel = MultiChannel::builder().pd(&pd).num_channels(3).build()?;

    let endpoints = multi_channel.endpoints();
    let mut multi_channel = multi_channel.handshake(endpoints)?;

    let mut mem = [0u8; 8];
    let mr = pd.register_local_mr_slice(&mem)?;
    let (send_mem, recv_mem) = mem.split_at_mut(4);

    let before = bytes(recv_mem);

    multi_channel.scope(|s| {
        send_mem.copy_from_slice(&[1u8; 4]);

        let send_sge = [mr.gather_element_unchecked(&send_mem[0..4])];
        let mut recv_sge = [mr.scatter_element_unchecked(&mut recv_mem[0..4])];

        s.post_receive(PeerReceiveWorkRequest::new(1, &mut recv_sge))?;

        s.post_send(PeerSendWorkRequest::new(1, &send_sge))?;

        Ok::<(), ScopeError<TransportError>>(())
    })?;

    Ok(format!("Recv mem before: {before}\nRecv mem after: {}", bytes(recv_mem)))
}
