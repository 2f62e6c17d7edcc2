//! H1: a region cannot be closed while an element of it exists.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let memory = vec![0; 64];
    let region = pd.register_local_mr_slice(&memory)?;
    let element = region.gather_element(&memory[..8]);
    drop(pd);
    println!("{}", element.length());
    Ok(())
}
