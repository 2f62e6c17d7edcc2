//! H1: a borrowed region cannot be forgotten, which ends its borrow, while an element of it exists.

use rdma_mem::{Error, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut memory = vec![0; 64];
    let mut region = pd.register_borrowed(&mut memory)?;
    let mut slice = region.as_slice_mut();
    let element = slice.scatter_element();
    std::mem::forget(pd);
    println!("{}", element.length());
    Ok(())
}
