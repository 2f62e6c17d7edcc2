//! Handles of a collective cannot be used after its scope.

use rdma_channel::{
    PeerReceiveWorkRequest, PeerSendWorkRequest, ScopeError, TransportError, prelude::*,
};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channels = pd.create_multi_channel().num_channels(2).build().unwrap();
    let endpoints = channels.endpoints();
    let mut channels = channels.handshake(endpoints).unwrap(); // each to itself
    let kept = channels.scope(|s| {
        let rooms = s.post_gather_receive([0, 1].map(PeerReceiveWorkRequest::only_immediate))?;
        s.post_scatter_send([0, 1].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1)))?;
        let successes: Vec<_> = rooms.iter().map(|room| room.spin_poll()).collect();
        Ok::<_, TransportError>(successes)
    })?;
    drop(kept);
    Ok(())
}
