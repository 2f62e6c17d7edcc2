//! The examples of libibverbs, in two processes.

use crate::two_processes::run;

fn pingpong(service: &str, arguments: &[&str]) {
    let arguments = [&["-n", "200"], arguments].concat();
    let Some(outputs) = run(&format!("ibv_{service}_pingpong"), &arguments) else { return };
    assert!(outputs.iter().all(|output| output.contains("200 iters in ")), "{outputs:?}");
}

#[test]
fn reliable_connections_exchange_checked_bytes() {
    pingpong("rc", &["-d", "soft0", "-g", "1", "-c"]);
    pingpong("rc", &["-d", "softib0", "-c"]);
}

#[test]
fn reliable_connections_wait_for_events() {
    pingpong("rc", &["-d", "soft0", "-g", "1", "-e"]);
}

#[test]
fn reliable_connections_post_through_extended_queue_pairs() {
    pingpong("rc", &["-d", "soft0", "-g", "1", "-N"]);
}

#[test]
fn unreliable_connections_exchange_messages() {
    pingpong("uc", &["-d", "soft0", "-g", "1"]);
    pingpong("uc", &["-d", "softib0"]);
}

#[test]
fn datagrams_are_exchanged() {
    pingpong("ud", &["-d", "soft0", "-g", "1"]);
    pingpong("ud", &["-d", "softib0"]);
}

/// With several queue pairs, the program may end before it has received the last messages of its peer, whose sends then
/// fail.
#[test]
fn a_shared_receive_queue_serves_a_connection() {
    pingpong("srq", &["-d", "soft0", "-g", "1", "-q", "1"]);
}
