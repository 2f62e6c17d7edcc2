//! H1: safe code never exposes memory to peers that the region does not own.
#![allow(unsafe_code)]

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut memory = vec![0; 64];
    let (address, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: SAFETY.md F8: the region ends before its memory, and its key is not given away.
    let region = unsafe { pd.register_shared_mr(address, length) }?;
    println!("{}", region.length());
    Ok(())
}
