//! H9: two elements to write to never share their bytes.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut memory = vec![0; 64];
    let region = pd.register_local_mr_slice(&memory)?;
    let (left, right) = memory.split_at_mut(32);
    let first = region.scatter_element(left);
    let second = region.scatter_element(left);
    println!("{} {}", first.length(), second.length());
    right[0] = 1;
    Ok(())
}
