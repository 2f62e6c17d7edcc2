//! A blocking call that times out would also end the requests of the scope.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    channel.scope(|s| {
        s.post_receive(ReceiveWorkRequest::new(&mut []))?;
        channel.send(SendWorkRequest::new(&[]))?;
        Ok::<(), TransportError>(())
    })?;
    drop(channel);
    Ok(())
}
