//! Chunks of a registered slice's bytes are plain bytes, without a registration.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::SendWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = pd.allocate_region(16).unwrap();
    channel.scope(|s| {
        #[allow(unused_mut)] // one of the two needs it
        let mut slice = memory.as_slice_mut();
        for piece in slice.chunks_mut(8) {
            let received = s.receive_into(piece)?;
            s.post_send(SendWorkRequest::only_immediate(1))?;
            received.wait(Duration::from_secs(5)).unwrap().result?;
        }
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
