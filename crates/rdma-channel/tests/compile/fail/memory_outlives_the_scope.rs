//! Memory of a closure is freed before the requests that the closure leaves in flight have ended.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut outside = vec![1_u8; 8];
    let region = pd.register_local_mr_slice(&outside).unwrap();
    channel.scope(|s| {
        let mut inside = outside.clone();
        s.post_receive(ReceiveWorkRequest::new(&mut [region.scatter_element(&mut inside[..4])]))?;
        s.post_send(SendWorkRequest::new(&[]))?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
