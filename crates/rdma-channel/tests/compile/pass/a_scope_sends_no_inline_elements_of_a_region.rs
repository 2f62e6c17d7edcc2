//! The device accesses elements of a region by their key, also in sends of a scope.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_mem::AccessFlags;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let access = AccessFlags::new().with_local_write();
    let board = pd.allocate_shared_region(64, access).unwrap();
    channel.scope(|s| {
        s.post_receive(ReceiveWorkRequest::new(&mut [board.element(8..16).unwrap().into()]))?;
        let elements = [board.element(0..8).unwrap().into()];
        s.post_send(SendWorkRequest::new(&elements))?;
        Ok::<(), TransportError>(())
    })
}
