//! The faults of `RDMA_SOFT_FAULTS`, as a C program sees them.

use crate::c_programs::run;

/// The number of requests that the program posts.
const REQUESTS: usize = 64;

/// Returns the lines that the program prints about a subject, on a device with these faults.
fn see(faults: &str, subject: &str) -> Option<Vec<String>> {
    let text = run("faults.c", |program| _ = program.env("RDMA_SOFT_FAULTS", faults).arg(subject))?;
    Some(text.lines().map(str::to_owned).collect())
}

/// Returns the lines about requests, and the microseconds until the first one has completed.
fn see_requests(faults: &str) -> Option<(Vec<String>, u64)> {
    let mut lines = see(faults, "requests")?;
    let last = lines.pop().unwrap();
    let time = last.strip_prefix("the first after ").and_then(|rest| rest.strip_suffix(" us"));
    Some((lines, time.unwrap().parse().unwrap()))
}

#[test]
fn a_call_fails_at_its_number() {
    let Some(lines) = see("create_cq@3=ENOMEM", "calls") else { return };
    let third = "call 3: Cannot allocate memory";
    assert_eq!(lines, ["call 1: created", "call 2: created", third, "call 4: created"]);
}

#[test]
fn a_request_fails_with_its_status_and_later_ones_are_flushed() {
    let faults = "seed=7;fail=10%:RNR_RETRY_EXC";
    let Some((lines, _)) = see_requests(faults) else { return };
    let [before, failed, flushed, arrived] = &lines[..] else { panic!("{lines:?}") };
    let number = failed.strip_prefix("requests ").and_then(|rest| rest.split(' ').next()).unwrap();
    let number: usize = number.parse().unwrap();
    assert_eq!(*before, format!("requests 0 to {}: status 0", number - 1));
    assert_eq!(*failed, format!("requests {number} to {number}: status 13"));
    let last = REQUESTS - 1;
    assert_eq!(*flushed, format!("requests {} to {last}: status 5", number + 1));
    assert_eq!(*arrived, format!("arrived: {number}"));
    // The same seed selects the same request.
    assert_eq!(see_requests(faults).unwrap().0, lines);
}

#[test]
fn messages_survive_lost_packets() {
    let Some((lines, _)) = see_requests("seed=7;loss=5%") else { return };
    assert_eq!(lines, ["requests 0 to 63: status 0", "arrived: 64"]);
    // If all packets are lost, the peer does not answer.
    let (lines, _) = see_requests("loss=100%").unwrap();
    let expected = ["requests 0 to 0: status 12", "requests 1 to 63: status 5", "arrived: 0"];
    assert_eq!(lines, expected);
}

#[test]
fn messages_of_a_slow_peer_arrive_late() {
    let Some((lines, time)) = see_requests("slow_peer=5ms") else { return };
    assert_eq!(lines, ["requests 0 to 63: status 0", "arrived: 64"]);
    // The message is late by this time, and so is its acknowledgement.
    assert!(time >= 10_000, "{time} us");
}

#[test]
fn a_port_that_flaps_raises_its_events() {
    let Some(lines) = see("port_flap=200ms", "port") else { return };
    assert_eq!(lines, ["PORT_ERR", "PORT_ACTIVE"]);
}

#[test]
fn gids_that_move_raise_an_event_and_change_the_table() {
    let Some(lines) = see("gid_move=200ms", "gids") else { return };
    let [events @ .., last] = &lines[..] else { panic!("{lines:?}") };
    assert!(!events.is_empty() && events.iter().all(|event| event == "GID_CHANGE"), "{lines:?}");
    assert_eq!(last, "each GID has another index");
}
