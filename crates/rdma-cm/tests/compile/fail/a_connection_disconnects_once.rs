//! The first call consumes the connection, so the program cannot use what has ended.

use rdma_cm::{Connection, Error};

fn disconnect(connection: Connection, other: Connection) -> Result<(), Error> {
    drop(connection.disconnect(b"bye")?);
    drop(connection.disconnect(b"bye")?);
    Ok(())
}

pub fn main() {
    println!("{}", disconnect as *const () as usize != 0);
}
