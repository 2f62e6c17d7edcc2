//! Removing the peer would end the requests of its handles.
#![allow(unsafe_code)]

use rdma_channel::{PeerReceiveWorkRequest, TransportError, prelude::*};

pub fn main() -> Result<(), TransportError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    let prepared = pd.create_multi_channel().num_channels(1).build()?;
    let endpoints = prepared.endpoints();
    let mut channels = prepared.handshake(endpoints)?; // to itself
    // SAFETY: the request has no memory.
    let received = unsafe { channels.receive_unpolled(PeerReceiveWorkRequest::new(0, &mut [])) }?;
    channels.remove(0)?;
    drop(received);
    channels.remove(0)
}
