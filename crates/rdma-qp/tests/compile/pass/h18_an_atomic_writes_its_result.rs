//! H18: an atomic request writes the old value of the word, so its memory is not a source.

use rdma_mem::open_device;
use rdma_qp::{AtomicWorkRequest, CompletionQueue, Error, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    drop(prepare()?);
    let mut region = pd.allocate_region(8)?;
    let mut slice = region.as_slice_mut();
    let word = rdma_mem::RemoteMemoryRegion::new(0x1000, 8, 7);
    let mut result = slice.scatter_element();
    println!("{:?}", AtomicWorkRequest::fetch_and_add(&mut result, word, 1));
    Ok(())
}
