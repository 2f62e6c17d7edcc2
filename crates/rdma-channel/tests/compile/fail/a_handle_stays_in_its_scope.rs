//! A handle cannot be used after its scope.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut kept = None;
    channel.scope(|s| {
        let received = s.post_receive(ReceiveWorkRequest::new(&mut []))?;
        s.post_send(SendWorkRequest::new(&[]))?.spin_poll()?;
        let success = received.spin_poll()?;
        kept = Some(received);
        Ok::<(), TransportError>(())
    })?;
    drop(kept);
    Ok(())
}
