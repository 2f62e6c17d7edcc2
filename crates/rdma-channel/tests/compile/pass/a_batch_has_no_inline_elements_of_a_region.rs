//! The device accesses elements of a region by their key, also in a batch.

use rdma_channel::{TransportError, prelude::*};
use rdma_mem::AccessFlags;
use rdma_qp::WriteWorkRequest;

pub fn main() -> Result<(), TransportError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    let channel = pd.create_channel().build()?;
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint)?; // to itself
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(64, access)?;
    let elements = [board.element(0..8).unwrap().into()];
    let remote = board.remote().sub_region(8).unwrap();
    let request = WriteWorkRequest::new(&elements, remote).signaled(false);
    channel.batch([request.into()])?;
    Ok(())
}
