//! A listener ends when it is dropped.

use std::time::Duration;

use rdma_cm::{Error, Listener};

fn serve(listener: Listener, other: Listener) -> Result<(), Error> {
    drop(listener);
    drop(listener.incoming(Duration::ZERO)?);
    Ok(())
}

pub fn main() {
    println!("{}", serve as *const () as usize != 0);
}
