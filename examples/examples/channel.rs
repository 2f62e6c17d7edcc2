//! A channel that is connected to itself sends four bytes, in a scope. Written for the published crate, and the same
//! here but for the `use` lines, the choice of the device, and the log. The channel is its own peer:
//! there is one end, and one process.
#![allow(clippy::unwrap_used)] // as it was written

use clap::Parser;
use rdma_channel::ScopeError;
use rdma_channel::{Channel, TransportError};
use rdma_mem::open_device;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

/// Sends four bytes through a channel that is connected to itself.
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
    let channel = Channel::builder().pd(&pd).build().unwrap();

    let mut mem = [0u8; 8];
    let mr = pd.register_local_mr_slice(&mem).unwrap();

    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap();

    mem[0..4].fill(8);

    println!("Mem before exchange: {mem:?}");

    channel
        .scope(|s| {
            let (send_mem, recv_mem) = mem.split_at_mut(4);

            let send_ge = [mr.gather_element_unchecked(send_mem)];
            let mut recv_se = [mr.scatter_element_unchecked(recv_mem)];

            s.post_receive(ReceiveWorkRequest::new(&mut recv_se))?;
            s.post_send(SendWorkRequest::new(&send_ge))?;

            Ok::<(), ScopeError<TransportError>>(())
        })
        .unwrap();

    println!("Mem after exchange: {mem:?}");
    mem
}
