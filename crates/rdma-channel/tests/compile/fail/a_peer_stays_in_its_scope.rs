//! A peer of a scope cannot be used after it: it could post memory that no scope waits for.

use rdma_channel::{ScopeError, TransportError, prelude::*};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channels = pd.create_multi_channel().num_channels(2).build().unwrap();
    let endpoints = channels.endpoints();
    let mut channels = channels.handshake(endpoints).unwrap(); // each to itself
    let kept = channels.scope(|s| {
        let peer = s.to(1)?;
        Ok::<_, TransportError>(peer)
    })?;
    drop(kept);
    Ok(())
}
