//! H1: a borrowed region may be forgotten while it is registered, so peers never get a key for it.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut memory = vec![0; 64];
    let region = pd.register_borrowed(&mut memory)?;
    println!("{:?}", region.remote());
    Ok(())
}
