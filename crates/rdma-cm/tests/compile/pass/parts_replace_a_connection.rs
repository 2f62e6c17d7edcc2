//! The program owns the parts, so the connection can no longer use them.

use rdma_cm::{Connection, Error};

fn take_apart(connection: Connection, other: Connection) -> Result<(), Error> {
    let parts = connection.into_parts();
    drop(other.disconnect(b"bye")?);
    drop(parts);
    Ok(())
}

pub fn main() {
    println!("{}", take_apart as *const () as usize != 0);
}
