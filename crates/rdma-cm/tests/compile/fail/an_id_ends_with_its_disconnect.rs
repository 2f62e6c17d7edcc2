//! The ID of a connection is consumed, like the connection itself.

use rdma_cm::{ConnectionId, Error};

fn disconnect(id: ConnectionId, other: ConnectionId) -> Result<(), Error> {
    id.disconnect(b"bye")?;
    id.disconnect(b"bye")
}

pub fn main() {
    println!("{}", disconnect as *const () as usize != 0);
}
