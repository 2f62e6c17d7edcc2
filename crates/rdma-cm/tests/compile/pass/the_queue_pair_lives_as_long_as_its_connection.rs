//! A connection that is dropped destroys its queue pair.

use rdma_cm::Connection;

fn number(connection: Connection, other: Connection) -> u32 {
    let queue_pair = connection.queue_pair();
    drop(other);
    queue_pair.qpn().get()
}

pub fn main() {
    println!("{}", number as *const () as usize != 0);
}
