//! H9: no two requests write to the same elements.

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, ReceiveWorkRequest, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    drop(prepare()?);
    let (mut one, mut other) = (pd.allocate_region(64)?, pd.allocate_region(64)?);
    let (mut one, mut other) = (one.as_slice_mut(), other.as_slice_mut());
    let (mut room, mut more) = ([one.scatter_element()], [other.scatter_element()]);
    let first = ReceiveWorkRequest::new(&mut room);
    let second = ReceiveWorkRequest::new(&mut more);
    println!("{first:?} {second:?}");
    more.reverse();
    Ok(())
}
