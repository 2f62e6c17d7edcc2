//! The answer is not received into the memory that is sent.

use rdma_channel::{TransportError, prelude::*};

pub fn main() -> Result<(), TransportError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    let channel = pd.create_channel().build()?;
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint)?; // to itself
    let (question, mut answer) = (pd.allocate_region(8)?, pd.allocate_region(8)?);
    assert_eq!(question.len(), 8);
    let length = channel.exchange_from(answer.as_slice(), answer.as_slice_mut())?;
    assert_eq!(length, 8);
    Ok(())
}
