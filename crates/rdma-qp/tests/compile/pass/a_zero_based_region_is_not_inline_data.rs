//! Addresses in a zero-based region start at 0: they are never read as pointers.

use rdma_mem::{AccessFlags, Error, GatherElement, open_device};
use rdma_qp::SendWorkRequest;

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let access = AccessFlags::new().with_local_write().with_zero_based();
    let board = pd.allocate_shared_region(64, access)?;
    let elements = [GatherElement::from(board.element(8..16).unwrap())];
    let request = SendWorkRequest::new(&elements);
    println!("{request:?}");
    Ok(())
}
