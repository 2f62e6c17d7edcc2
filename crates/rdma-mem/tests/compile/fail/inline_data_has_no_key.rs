//! Inline data belongs to no region: it is not an element with a key.

use rdma_mem::{Error, GatherElement, InlineElement, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_region(64)?;
    let inline = InlineElement::new(&region);
    let element = GatherElement::from(inline);
    println!("{} and {}", element.length(), inline.length());
    Ok(())
}
