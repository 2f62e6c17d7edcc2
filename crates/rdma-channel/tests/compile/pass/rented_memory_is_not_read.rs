//! Rented memory belongs to the operation.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError, prelude::*};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let (mut source, mut target) = (pd.allocate_region(8).unwrap(), pd.allocate_region(8).unwrap());
    channel.scope(|s| {
        let (mut from, mut to) = (source.as_slice_mut(), target.as_slice_mut());
        (from[0], to[0]) = (1, 1);
        let received = s.receive_into(to)?;
        let sent = s.send_from(from)?;
        assert_eq!(endpoint, endpoint);
        received.wait(Duration::from_secs(5)).unwrap().result?;
        sent.wait(Duration::from_secs(5)).unwrap().result?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
