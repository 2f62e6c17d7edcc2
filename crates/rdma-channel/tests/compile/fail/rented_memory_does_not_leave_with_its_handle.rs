//! Memory in flight does not leave the scope.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::SendWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = pd.allocate_region(8).unwrap();
    let kept = channel.scope(|s| {
        let received = s.receive_into(memory.as_slice_mut())?;
        s.post_send(SendWorkRequest::new(&[]))?.spin_poll()?;
        Ok::<_, TransportError>(received)
    })?;
    println!("{kept:?}");
    Ok(())
}
