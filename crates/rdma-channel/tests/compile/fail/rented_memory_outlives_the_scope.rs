//! A region of the closure is freed before the requests that the closure leaves in flight have ended.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::SendWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut outside = pd.allocate_region(8).unwrap();
    channel.scope(|s| {
        let inside = &mut pd.allocate_region(8).unwrap();
        drop(s.receive_into(inside.as_slice_mut())?);
        s.post_send(SendWorkRequest::new(&[]))?;
        Ok::<(), TransportError>(())
    })?;
    drop(outside);
    Ok(())
}
