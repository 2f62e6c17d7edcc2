//! Three channels, each connected to itself: the second sends four bytes, in a scope. Written for the published
//! crate, and the same here but for the `use` lines, the choice of the device, and the log. Each channel is its own
//! peer: there is one end, and one process.
#![allow(clippy::unwrap_used)] // as it was written

use clap::Parser;
use rdma_channel::MultiChannel;
use rdma_channel::{PeerReceiveWorkRequest, PeerSendWorkRequest};
use rdma_channel::{ScopeError, TransportError};
use rdma_mem::open_device;

/// Sends four bytes through one of three channels.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
}

fn main() {
    run(&Arguments::parse());
}

pub(crate) fn run(arguments: &Arguments) -> [u8; 8] {
    rdma_soft::install();
    let ctx = open_device(&arguments.device).unwrap();
    let pd = ctx.allocate_pd().unwrap();

    let multi_channel = MultiChannel::builder().pd(&pd).num_channels(3).build().unwrap();

    let endpoints = multi_channel.endpoints();
    let mut multi_channel = multi_channel.handshake(endpoints).unwrap();

    let mut mem = [0u8; 8];
    let mr = pd.register_local_mr_slice(&mem).unwrap();
    let (send_mem, recv_mem) = mem.split_at_mut(4);

    println!("Recv mem before: {recv_mem:?}");

    let result = multi_channel.scope(|s| {
        send_mem.copy_from_slice(&[1u8; 4]);

        let send_sge = [mr.gather_element_unchecked(&send_mem[0..4])];
        let mut recv_sge = [mr.scatter_element_unchecked(&mut recv_mem[0..4])];

        s.post_receive(PeerReceiveWorkRequest::new(1, &mut recv_sge))?;

        s.post_send(PeerSendWorkRequest::new(1, &send_sge))?;

        Ok::<(), ScopeError<TransportError>>(())
    });

    println!("Recv mem after: {recv_mem:?}");
    println!("{result:?}");
    result.unwrap();
    mem
}
