//! A closure that changes a rented request cannot replace its memory.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::SendWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let (mut source, mut target) = (pd.allocate_region(8).unwrap(), pd.allocate_region(8).unwrap());
    let other = pd.allocate_region(8).unwrap();
    let _elements = [other.as_slice().gather_element()];
    channel.scope(|s| {
        let received = s.receive_into(target.as_slice_mut())?;
        let from = source.as_slice_mut();
        let sent = s.send_from_with(from, |_| SendWorkRequest::new(&[]))?;
        received.wait(Duration::from_secs(5)).unwrap().result?;
        sent.wait(Duration::from_secs(5)).unwrap().result?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
