//! H5: a failed poll names no request, so it is never mistaken for the end of one.

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, PollSlot, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    drop(prepare()?);
    let mut slots = [PollSlot::default(); 4];
    if let Err(error) = cq.poll(&mut slots) {
        println!("{}", error.to_string());
    }
    Ok(())
}
