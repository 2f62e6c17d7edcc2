//! H10: there is no reference to bytes that peers may write.

use rdma_mem::{AccessFlags, Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let region = pd.allocate_shared_region(64, access)?;
    let bytes: &[u8] = &region;
    println!("{}", bytes.len());
    Ok(())
}
