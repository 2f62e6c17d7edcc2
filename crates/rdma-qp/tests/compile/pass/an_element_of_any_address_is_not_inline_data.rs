//! An unchecked element can be outside of its region: the device refuses it, and the processor never reads it.

use rdma_mem::{Error, GatherElement, open_device};
use rdma_qp::{SendWithInvalidate, SendWorkRequest};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let (inside, outside) = ([1; 8], [2; 8]);
    let region = pd.register_local_mr_slice(&inside)?;
    let elements = [GatherElement::new_unchecked(&region, &outside)];
    let request = SendWorkRequest::new(&elements).solicited();
    println!("{:?}", SendWithInvalidate::from_send(request, 7));
    Ok(())
}
