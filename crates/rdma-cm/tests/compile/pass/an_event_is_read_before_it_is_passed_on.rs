//! The private data of an event lives as long as the event.

use rdma_cm::{Connection, Event};

fn read(connection: Connection, event: Event) -> usize {
    let private_data = event.private_data().to_vec();
    drop(connection.advance(event));
    private_data.len()
}

pub fn main() {
    println!("{}", read as *const () as usize != 0);
}
