//! H9: an element is made from a region and its memory, not from numbers.

use rdma_mem::{Error, GatherElement, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_region(64)?;
    let element: GatherElement<'_> = region.as_slice().gather_element();
    println!("{}", element.length());
    Ok(())
}
