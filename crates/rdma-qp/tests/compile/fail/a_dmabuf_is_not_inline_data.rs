//! Safe code chooses the address of a dma-buf: it is never read as a pointer.

use std::os::fd::BorrowedFd;

use rdma_mem::{Error, GatherElement, ProtectionDomain, RemoteMemoryRegion};
use rdma_qp::WriteWorkRequest;

fn write(pd: &ProtectionDomain, file: BorrowedFd<'_>, secret: u64) -> Result<(), Error> {
    let region = pd.register_local_dmabuf_mr(file, 0, 64, secret)?;
    let elements = [GatherElement::from(region.element(0..64).unwrap())];
    let remote = RemoteMemoryRegion::new(0x1000, 64, 7);
    let request = WriteWorkRequest::new(&elements, remote).inline();
    println!("{request:?}");
    Ok(())
}

pub fn main() {
    println!("{}", write as *const () as usize != 0);
}
