//! Memory of an element that was posted for two messages is not read after the first has arrived.

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
        let mut room = [region.scatter_element(to)];
        let first = s.post_receive(ReceiveWorkRequest::new(&mut room))?;
        s.post_receive(ReceiveWorkRequest::new(&mut room))?;
        s.post_send(SendWorkRequest::new(&[region.gather_element(from)]))?;
        first.spin_poll()?;
        assert_eq!(to[0], 1);
        s.post_send(SendWorkRequest::new(&[region.gather_element(from)]))?;
        Ok::<(), TransportError>(())
    })?;
    assert_eq!(memory, [1; 8]);
    Ok(())
}
