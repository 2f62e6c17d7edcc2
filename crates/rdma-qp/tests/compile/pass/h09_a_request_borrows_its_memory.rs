//! H9: a request borrows its memory until it is posted, and after that the device uses it.

use rdma_mem::open_device;
use rdma_qp::{CompletionQueue, Error, WriteWorkRequest, prelude::*};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let cq = CompletionQueue::create(&context, 64)?;
    let pd = context.allocate_pd()?;
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    drop(prepare()?);
    let (region, other) = (pd.allocate_region(64)?, pd.allocate_region(64)?);
    let remote = rdma_mem::RemoteMemoryRegion::new(0x1000, 64, 7);
    let elements = [region.as_slice().gather_element()];
    let request = WriteWorkRequest::new(&elements, remote);
    drop(other);
    println!("{request:?}");
    Ok(())
}
