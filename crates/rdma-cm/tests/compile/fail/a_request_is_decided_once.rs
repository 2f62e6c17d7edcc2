//! A request is either rejected or accepted.

use rdma_cm::{ConnectionRequest, Error, PreparedQueuePair};

fn decide(
    request: ConnectionRequest,
    other: ConnectionRequest,
    queue_pair: PreparedQueuePair,
) -> Result<(), Error> {
    request.reject(b"no")?;
    drop(request.prepare(queue_pair)?.accept(b"yes")?);
    Ok(())
}

pub fn main() {
    println!("{}", decide as *const () as usize != 0);
}
