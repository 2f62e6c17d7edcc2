//! A state is consumed by the step to the next one.

use std::time::Duration;

use rdma_cm::{Connecting, Error, Event};

fn advance(connecting: Connecting, other: Connecting, event: Event) -> Result<(), Error> {
    drop(connecting.advance(event));
    drop(connecting.wait(Duration::ZERO)?);
    Ok(())
}

pub fn main() {
    println!("{}", advance as *const () as usize != 0);
}
