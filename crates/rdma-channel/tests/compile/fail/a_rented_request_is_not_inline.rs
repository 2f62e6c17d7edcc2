//! The device accesses rented memory by its key, not inline.

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::ReceiveWorkRequest;

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().max_inline_data(8).build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    let mut memory = pd.allocate_region(8).unwrap();
    channel.scope(|s| {
        let (from, to) = memory.as_slice_mut().split_at(4);
        s.receive_into(to)?;
        drop(s.send_from_with(from, |request| request.inline())?);
        s.post_receive(ReceiveWorkRequest::only_immediate())?;
        s.close();
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
