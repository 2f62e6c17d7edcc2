//! Posting is `unsafe`: the device uses the memory after the borrow has ended.
#![allow(unsafe_code)]

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, ReceiveWorkRequest, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    let qp = prepare()?.handshake(prepare()?.endpoint())?;
    let request = ReceiveWorkRequest::only_immediate();
    // SAFETY: SAFETY.md F8: no memory.
    let posted = unsafe { qp.post_receive(request, 1) };
    println!("{posted:?}");
    Ok(())
}
