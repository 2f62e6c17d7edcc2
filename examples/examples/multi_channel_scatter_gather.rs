//! Five channels, each connected to itself. Each sends one byte, within a scope; one call posts all
//! sends, and another one all receives. The code was written for the published crate `ibverbs-rs`.
//! Only the `use` lines, the choice of the device and the output differ, and `?` replaces `unwrap`.
//! Since each channel is its own peer, the program has only one end and one process.

use std::process::ExitCode;

use clap::Parser;
use rdma::prelude::*;
use rdma_examples_common::{Failure, bytes, program};

/// Sends a byte through each of five channels
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

    let multi_channel = MultiChannel::builder().pd(&pd).num_channels(5).build()?;

    let endpoints = multi_channel.endpoints();
    let mut multi_channel = multi_channel.handshake(endpoints)?;

    let mut mem = [0u8; 10];
    let mr = pd.register_local_mr_slice(&mem)?;

    let (send_mem, recv_mem) = mem.split_at_mut(5);
    send_mem.copy_from_slice(&[1u8, 2u8, 3u8, 4u8, 5u8]);

    let before = bytes(recv_mem);

    let send_sges: Vec<Vec<_>> =
        send_mem.chunks(1).map(|chunk| vec![mr.gather_element(chunk)]).collect();

    let mut recv_sges: Vec<Vec<_>> =
        recv_mem.chunks_mut(1).map(|chunk| vec![mr.scatter_element(chunk)]).collect();

    multi_channel.scope(|s| {
        let scatter_sends =
            send_sges.iter().enumerate().map(|(peer, sges)| PeerSendWorkRequest::new(peer, sges));

        let gather_receives = recv_sges
            .iter_mut()
            .enumerate()
            .map(|(peer, sges)| PeerReceiveWorkRequest::new(peer, sges));

        s.post_scatter_send(scatter_sends)?;
        s.post_gather_receive(gather_receives)?;

        Ok::<(), ScopeError<TransportError>>(())
    })?;

    Ok(format!("Recv mem before: {before}\nRecv mem after: {}", bytes(recv_mem)))
}
