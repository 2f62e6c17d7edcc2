//! H14: the opcode of a failed completion is undefined, and cannot be read.

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
    for completion in cq.poll(&mut slots)? {
        if let Err(error) = completion.result() {
            println!("{:?}", error.code());
        }
    }
    Ok(())
}
