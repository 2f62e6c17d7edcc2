//! Inline data can be written at once after its post, but not memory that the device reads later.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().max_inline_data(8).build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = vec![1_u8; 8];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    channel.scope(|s| {
        let (from, to) = memory.split_at_mut(4);
        s.post_receive(ReceiveWorkRequest::new(&mut [region.scatter_element(to)]))?;
        s.post_send(SendWorkRequest::new(&[region.gather_element(from)]))?;
        from[0] = 2;
        Ok::<(), TransportError>(())
    })?;
    assert_eq!(memory, [2, 1, 1, 1, 1, 1, 1, 1]);
    Ok(())
}
