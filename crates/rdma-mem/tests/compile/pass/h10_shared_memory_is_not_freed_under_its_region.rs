//! H10: only closing the region returns memory that peers write.

use rdma_mem::{AccessFlags, Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_shared_region(64, AccessFlags::new().with_remote_read())?;
    let element = region.element(0..8).unwrap();
    let memory = region.len();
    println!("{} {memory:?}", element.length());
    Ok(())
}
