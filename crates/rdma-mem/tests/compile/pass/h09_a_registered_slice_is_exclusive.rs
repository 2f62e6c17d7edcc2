//! H9: bytes that a device may write cannot be read meanwhile.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut region = pd.allocate_region(64)?;
    let (mut left, right) = region.split_at(32);
    let element = left.scatter_element();
    println!("{}", right[0]);
    println!("{} {}", element.length(), right.len());
    Ok(())
}
