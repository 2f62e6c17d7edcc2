//! Memory of an inner scope is not posted to an outer one, which ends later.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let other = pd.create_channel().build().unwrap();
    let endpoint = other.endpoint();
    let mut other = other.handshake(endpoint).unwrap(); // to itself
    channel.scope(|outer| {
        let mut memory = pd.allocate_region(8).unwrap();
        outer.post_send(SendWorkRequest::only_immediate(1))?;
        let ended = other.scope(|inner| {
            inner.post_send(SendWorkRequest::only_immediate(1))?;
            drop(inner.receive_into(memory.as_slice_mut())?);
            Ok::<(), TransportError>(())
        });
        assert!(ended.is_ok());
        outer.post_receive(ReceiveWorkRequest::only_immediate())?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
