//! Memory for a message is not read before the scope has ended.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = vec![1_u8; 8];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    channel.scope(|s| {
        let (from, to) = memory.split_at_mut(4);
        s.post_receive(ReceiveWorkRequest::new(&mut [region.scatter_element(to)]))?;
        s.post_send(SendWorkRequest::new(&[region.gather_element(from)]))?;
        assert_eq!(endpoint, endpoint);
        Ok::<(), TransportError>(())
    })?;
    assert_eq!(memory, [1; 8]);
    Ok(())
}
