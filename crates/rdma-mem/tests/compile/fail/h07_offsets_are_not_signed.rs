//! H7: an offset before the start of a remote region is impossible.

use rdma_mem::{Error, RemoteMemoryRegion, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = RemoteMemoryRegion::new(0x1000, 64, 7);
    let offset = -8_isize;
    println!("{:?} {:?}", region.sub_region(offset), pd);
    Ok(())
}
