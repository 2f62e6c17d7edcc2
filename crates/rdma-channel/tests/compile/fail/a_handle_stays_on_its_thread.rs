//! A completion table belongs to one thread.

use std::thread;

use rdma_channel::{ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

pub fn main() -> Result<(), ScopeError> {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint).unwrap(); // to itself
    channel.scope(|s| {
        let received = s.post_receive(ReceiveWorkRequest::new(&mut []))?;
        s.post_send(SendWorkRequest::new(&[]))?.spin_poll()?;
        thread::scope(|threads| {
            threads.spawn(|| println!("{:?}", received.poll()));
        });
        received.spin_poll()?;
        Ok::<(), TransportError>(())
    })?;
    Ok(())
}
