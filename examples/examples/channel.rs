//! A channel that is connected to itself sends four bytes within a scope. The code was written for
//! the published crate `ibverbs-rs`. Only the `use` lines, the choice of the device and the output
//! differ, and `?` replaces `unwrap`. Since the channel is its own peer, the program has only one
//! end and one process.

use std::process::ExitCode;

use clap::Parser;
use rdma::prelude::*;
use rdma_examples_common::{Failure, bytes, program};

/// Sends four bytes through a channel that is connected to itself
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
    let channel = Channel::builder().pd(&pd).build()?;

    let mut mem = [0u8; 8];
    let mr = pd.register_local_mr_slice(&mem)?;

    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint)?;

    mem[0..4].fill(8);

    let before = bytes(&mem);

    channel.scope(|s| {
        let (send_mem, recv_mem) = mem.split_at_mut(4);

        let send_ge = [mr.gather_element_unchecked(send_mem)];
        let mut recv_se = [mr.scatter_element_unchecked(recv_mem)];

        s.post_receive(ReceiveWorkRequest::new(&mut recv_se))?;
        s.post_send(SendWorkRequest::new(&send_ge))?;

        Ok::<(), ScopeError<TransportError>>(())
    })?;

    Ok(format!("Mem before exchange: {before}\nMem after exchange: {}", bytes(&mem)))
}
