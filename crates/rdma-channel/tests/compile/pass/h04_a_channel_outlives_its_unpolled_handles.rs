//! H4: a handle does not wait for a destroyed queue pair.
#![allow(unsafe_code)]

use rdma_channel::{ScopeError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let channel = channel.handshake(endpoint).unwrap(); // to itself
    // SAFETY: the request has no memory.
    let received = unsafe { channel.receive_unpolled(ReceiveWorkRequest::only_immediate()) }?;
    channel.peer();
    drop(endpoint);
    received.poll();
    Ok(())
}
