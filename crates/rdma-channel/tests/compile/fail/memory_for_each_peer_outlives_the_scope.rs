//! Memory of a closure is freed before the requests to several peers that the closure leaves in flight have ended.

use rdma_channel::{PeerReceiveWorkRequest, ScopeError, TransportError, prelude::*};
use rdma_qp::SendWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channels = pd.create_multi_channel().num_channels(2).build().unwrap();
    let endpoints = channels.endpoints();
    let mut channels = channels.handshake(endpoints).unwrap(); // each to itself
    let outside = vec![1_u8; 8];
    let region = pd.register_local_mr_slice(&outside).unwrap();
    channels.scope(|s| {
        let inside = outside.clone();
        let data = [region.gather_element(&inside[..0])];
        s.post_gather_receive([0, 1].map(PeerReceiveWorkRequest::only_immediate))?;
        s.post_multicast_send([0, 1], SendWorkRequest::new(&data))?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
