//! Five channels, each connected to itself: one byte through each, sent and received by one call, in a scope. Written
//! for the published crate, and the same here but for the `use` lines, the choice of the device, and the log. Each
//! channel is its own peer: there is one end, and one process.
#![allow(clippy::unwrap_used)] // as it was written

use clap::Parser;
use rdma_channel::MultiChannel;
use rdma_channel::{PeerReceiveWorkRequest, PeerSendWorkRequest};
use rdma_channel::{ScopeError, TransportError};
use rdma_mem::open_device;

/// Sends a byte through each of five channels.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
}

fn main() {
    run(&Arguments::parse());
}

pub(crate) fn run(arguments: &Arguments) -> [u8; 10] {
    rdma_soft::install();
    let ctx = open_device(&arguments.device).unwrap();
    let pd = ctx.allocate_pd().unwrap();

    let multi_channel = MultiChannel::builder().pd(&pd).num_channels(5).build().unwrap();

    let endpoints = multi_channel.endpoints();
    let mut multi_channel = multi_channel.handshake(endpoints).unwrap();

    let mut mem = [0u8; 10];
    let mr = pd.register_local_mr_slice(&mem).unwrap();

    let (send_mem, recv_mem) = mem.split_at_mut(5);
    send_mem.copy_from_slice(&[1u8, 2u8, 3u8, 4u8, 5u8]);

    println!("Recv mem before: {recv_mem:?}");

    let send_sges: Vec<Vec<_>> =
        send_mem.chunks(1).map(|chunk| vec![mr.gather_element(chunk)]).collect();

    let mut recv_sges: Vec<Vec<_>> =
        recv_mem.chunks_mut(1).map(|chunk| vec![mr.scatter_element(chunk)]).collect();

    let result = multi_channel.scope(|s| {
        let scatter_sends =
            send_sges.iter().enumerate().map(|(peer, sges)| PeerSendWorkRequest::new(peer, sges));

        let gather_receives = recv_sges
            .iter_mut()
            .enumerate()
            .map(|(peer, sges)| PeerReceiveWorkRequest::new(peer, sges));

        // 3. Post
        s.post_scatter_send(scatter_sends)?;
        s.post_gather_receive(gather_receives)?;

        Ok::<(), ScopeError<TransportError>>(())
    });

    println!("Recv mem after: {recv_mem:?}");
    println!("{result:?}");
    result.unwrap();
    mem
}
