//! The next poll cannot overwrite completions while they are read.

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, PollSlot, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    drop(prepare()?);
    let (mut slots, mut more) = ([PollSlot::default(); 4], [PollSlot::default(); 4]);
    let first = cq.poll(&mut slots)?;
    let second = cq.poll(&mut more)?;
    println!("{}", first.chain(second).count());
    more.reverse();
    Ok(())
}
