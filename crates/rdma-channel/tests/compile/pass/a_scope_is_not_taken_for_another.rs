//! Handles of one scope cannot be used as those of another.

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
        outer.post_receive(ReceiveWorkRequest::only_immediate())?;
        let mut handles = vec![outer.post_send(SendWorkRequest::only_immediate(1))?];
        let ended = other.scope(|inner| {
            inner.post_receive(ReceiveWorkRequest::only_immediate())?;
            let sent = inner.post_send(SendWorkRequest::only_immediate(1))?;
            drop(sent);
            Ok::<(), TransportError>(())
        });
        assert!(ended.is_ok());
        handles.clear();
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
