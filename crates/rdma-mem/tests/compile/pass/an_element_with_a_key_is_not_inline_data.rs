//! The address of an element is one for the device, and need not be a pointer.

use rdma_mem::{Error, GatherElement, InlineElement, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_region(64)?;
    let element: GatherElement<'_> = region.as_slice().gather_element();
    let inline = InlineElement::new(&region);
    println!("{} and {}", element.length(), inline.length());
    Ok(())
}
