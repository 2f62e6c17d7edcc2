//! The fates of the messages of simulated connections. This program starts no processes. A child has copies of the
//! listeners' sockets until it executes its program, and keeps their ports in use.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

#[test]
fn each_message_of_the_communication_manager_is_lost_repeated_and_delayed() {
    let total = sim::connections(41, 40).unwrap();
    assert_eq!(total.unharmed(), Vec::<String>::new(), "{total}");
    assert!(total.established > 0 && total.answered > 0 && total.deaths > 0, "{total}");
}
