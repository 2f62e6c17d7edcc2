//! The device accesses elements of a region by their key, also in requests to one of many peers.

use rdma_channel::{ToPeer, TransportError, WriteWorkRequest, prelude::*};
use rdma_mem::AccessFlags;

pub fn main() -> Result<(), TransportError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    let channels = pd.create_multi_channel().num_channels(1).build()?;
    let endpoints = channels.endpoints();
    let mut channels = channels.handshake(endpoints)?; // to itself
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(64, access)?;
    let elements = [board.element(0..8).unwrap().into()];
    let remote = board.remote().sub_region(8).unwrap();
    channels.write(ToPeer::from_wr(0, WriteWorkRequest::new(&elements, remote)))?;
    Ok(())
}
