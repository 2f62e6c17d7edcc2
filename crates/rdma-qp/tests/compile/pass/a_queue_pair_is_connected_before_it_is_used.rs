//! Before the handshake there is no queue pair to post to.

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    let (prepared, peer) = (prepare()?, prepare()?.endpoint());
    let qp = prepared.handshake(peer)?;
    qp.to_error()?;
    println!("{peer:?}");
    Ok(())
}
