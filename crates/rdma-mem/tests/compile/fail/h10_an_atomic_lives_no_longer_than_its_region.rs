//! H10: a word of a shared region does not outlive the region.

use rdma_mem::{AccessFlags, Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_shared_region(64, AccessFlags::new().with_remote_read())?;
    let word = region.atomic_u64(0).unwrap();
    drop(region);
    println!("{word:?}");
    Ok(())
}
