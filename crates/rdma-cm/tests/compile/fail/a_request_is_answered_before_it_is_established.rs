//! Only a request that was accepted can be established.

use std::time::Duration;

use rdma_cm::{Connecting, Connection, Error};

fn establish(connecting: Connecting) -> Result<Connection, Error> {
    connecting.establish()
}

pub fn main() {
    println!("{}", establish as *const () as usize != 0);
}
