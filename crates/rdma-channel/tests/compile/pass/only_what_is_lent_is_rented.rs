//! A region owned by its operation would be freed or moved with the handle.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::ReceiveWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = pd.allocate_region(8).unwrap();
    channel.scope(|s| {
        s.post_receive(ReceiveWorkRequest::new(&mut []))?;
        let sent = s.send_from(memory.get_mut(0, 0).unwrap())?;
        sent.wait(Duration::from_secs(5)).unwrap().result?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
