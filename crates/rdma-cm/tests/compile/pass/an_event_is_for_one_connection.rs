//! The state that an event is passed to consumes the event.

use rdma_cm::{Accepted, Connection, Event, Step};

fn advance(accepted: Accepted, connection: Connection, event: Event, other: Event) {
    let first = accepted.advance(event);
    let second = connection.advance(other);
    drop((first, second));
}

pub fn main() {
    println!("{}", advance as *const () as usize != 0);
}
