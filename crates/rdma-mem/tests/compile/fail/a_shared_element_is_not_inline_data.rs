//! Memory that peers may write is not a slice: data to send inline has to be copied out of it.

use rdma_mem::{AccessFlags, Error, GatherElement, InlineElement, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let access = AccessFlags::new().with_local_write().with_zero_based();
    let board = pd.allocate_shared_region(64, access)?;
    let element = board.element(0..8).unwrap();
    let mut copy = [0; 8];
    board.read(0, &mut copy).unwrap();
    let inline = InlineElement::from(element);
    println!("{} and {}", GatherElement::from(element).length(), inline.length());
    Ok(())
}
