//! Inline data is of no region: it is no element that a device looks up.

use rdma_mem::{Error, GatherElement, InlineElement, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_region(64)?;
    let inline = InlineElement::new(&region);
    let element: GatherElement<'_> = region.as_slice().gather_element();
    println!("{} and {}", element.length(), inline.length());
    Ok(())
}
