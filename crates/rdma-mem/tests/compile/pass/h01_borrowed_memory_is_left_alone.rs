//! H1: while a region borrows memory exclusively, other code cannot write it.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut memory = vec![0; 64];
    let mut region = pd.register_borrowed(&mut memory)?;
    region[0] = 1;
    println!("{}", region.as_slice_mut().len());
    Ok(())
}
