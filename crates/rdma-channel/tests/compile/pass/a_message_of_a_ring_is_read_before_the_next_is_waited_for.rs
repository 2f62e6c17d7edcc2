//! A message's buffer is posted again when the message is dropped, so that has to happen before the ring is used.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError, prelude::*};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = pd.allocate_region(16).unwrap();
    channel.scope(|s| {
        let mut ring = s.receive_ring(memory.as_slice_mut().into_chunks(8))?;
        [b"one", b"two"].into_iter().try_for_each(|text| s.send_inline(text).map(drop))?;
        let (message, _) = ring.next(Duration::from_secs(10))?.take();
        ring.next(Duration::from_secs(10)).map(drop)?;
        assert_eq!(message[..3], *b"one");
        s.close();
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
