//! Memory of a batch of any length outlives its scope, like that of one request.

use rdma_channel::{BatchRequest, ScopeError, TransportError, prelude::*};
use rdma_qp::WriteWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let prepared = pd.create_channel().build().unwrap();
    let endpoint = prepared.endpoint();
    let mut channel = prepared.handshake(endpoint).unwrap(); // to itself
    let outside = pd.allocate_region(8).unwrap();
    let remote = rdma_mem::RemoteMemoryRegion::new(0, 0, 1);
    channel.scope(|s| {
        let inside = pd.allocate_region(8).unwrap();
        let elements = [[outside.get_ref(0, 0).unwrap().gather_element()]];
        let writes = elements.iter().map(|element| WriteWorkRequest::new(element, remote));
        s.post_batch_of(writes.map(BatchRequest::from))?;
        drop(inside);
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
