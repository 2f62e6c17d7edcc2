//! H4: a queue pair has one owner, which the connection consumes.

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    let (a, b, peer) = (prepare()?, prepare()?, prepare()?.endpoint());
    let first = a.handshake(peer)?;
    let second = b.handshake(peer)?;
    println!("{} {}", first.qpn(), second.qpn());
    Ok(())
}
