//! H1: memory cannot be freed, and mapped again, while a region borrows it.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut memory = vec![0; 64];
    let region = pd.register_borrowed(&mut memory)?;
    drop(memory);
    println!("{:?}", region.lkey());
    Ok(())
}
