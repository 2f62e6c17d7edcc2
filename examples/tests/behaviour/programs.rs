//! The smaller programs run, and print the expected output.

use clap::Parser;
use test_support::features::Feature;

use crate::common::lacks;
use crate::examples::{
    atomics, channel, channel_blocking, echo, failover, gradient_descent, multi_channel,
    multi_channel_scatter_gather, pingpong, replication, shared_memory, srq, ud_pingpong, windows,
};

#[test]
fn a_message_is_sent_back_and_forth_by_polling_and_by_sleeping() {
    for device in ["soft0", "softib0"] {
        for events in [&["--events"][..], &[]] {
            for (size, iterations) in [("1", "50"), ("100000", "5"), ("64", "0")] {
                let options =
                    ["pingpong", "--device", device, "--size", size, "--iterations", iterations];
                let arguments = pingpong::Arguments::parse_from(options.iter().chain(events));
                let line = pingpong::run(&arguments).unwrap();
                let begin = format!("{device}: {iterations} times {size} bytes, ");
                assert!(line.starts_with(&begin) && line.ends_with(" us per round trip"), "{line}");
            }
        }
    }
}

#[test]
fn every_message_returns_through_circulating_buffers() {
    let late = "echo_deferred";
    let schedule = rdma::soft::Schedule::Deferred { seed: 5 };
    rdma::soft::Builder::new(late).schedule(schedule).install().unwrap();
    for device in ["soft0", "softib0", late] {
        for (size, messages) in [("0", "3"), ("100", "250"), ("100000", "5"), ("64", "0")] {
            let options = ["echo", "--device", device, "--size", size, "--messages", messages];
            let line = echo::run(&echo::Arguments::parse_from(options)).unwrap();
            assert!(line.starts_with(&format!("{device}: {messages} messages in ")), "{line}");
        }
    }
}

#[test]
fn every_thread_draws_distinct_numbers_and_the_lock_protects_the_sum() {
    let late = "atomics_deferred";
    let schedule = rdma::soft::Schedule::Deferred { seed: 11 };
    rdma::soft::Builder::new(late).schedule(schedule).install().unwrap();
    for device in ["soft0", "softib0", late] {
        if lacks(device, Feature::Atomics) {
            continue;
        }
        for (threads, numbers) in [("3", "40"), ("1", "1"), ("2", "0")] {
            let options =
                ["atomics", "--device", device, "--threads", threads, "--numbers", numbers];
            let line = atomics::run(&atomics::Arguments::parse_from(options)).unwrap();
            let count = threads.parse::<u64>().unwrap() * numbers.parse::<u64>().unwrap();
            let sum = count * count.saturating_sub(1) / 2;
            let owner = format!("{device}: {count} numbers, and their sum is {sum}");
            let client = format!("{device}: {threads} threads drew {numbers} numbers each");
            assert_eq!(line, format!("{owner}\n{client}"));
        }
    }
}

#[test]
fn a_group_of_one_rank_fits_a_line() {
    for device in ["soft0", "softib0"] {
        let options = ["gradient_descent", "--device", device, "--points", "500"];
        let report = gradient_descent::run(&gradient_descent::Arguments::parse_from(options));
        let report = report.unwrap();
        assert!(report.ends_with("rank 0 of 1: y = 3.00 x + -1.00"), "{report}");
        assert_eq!(report.lines().count(), 8, "{report}");
    }
}

#[test]
fn records_appear_on_the_shared_board() {
    for device in ["soft0", "softib0"] {
        if lacks(device, Feature::Atomics) {
            continue;
        }
        for (records, line) in
            [("0", "0 of 0 records, sum 0"), ("300", "300 of 300 records, sum 44850")]
        {
            let options = ["shared_memory", "--device", device, "--records", records];
            let arguments = shared_memory::Arguments::parse_from(options);
            let told = format!("{device}: {line}\n{device}: wrote {records} records");
            assert_eq!(shared_memory::run(&arguments).unwrap(), told);
        }
    }
}

#[test]
fn a_returned_window_ends_the_peers_access() {
    for device in ["soft0", "softib0"] {
        if lacks(device, Feature::Windows) {
            continue;
        }
        let arguments = windows::Arguments::parse_from(["windows", "--device", device]);
        let text = windows::run(&arguments).unwrap();
        let begin = "lent and returned: written by the peer\na second write: remote access error";
        assert!(text.starts_with(begin), "{text}");
    }
}

#[test]
fn a_server_answers_datagrams_of_unknown_clients() {
    if lacks("soft0", Feature::Ud) {
        return;
    }
    let late = "ud_pingpong_deferred";
    let schedule = rdma::soft::Schedule::Deferred { seed: 5 };
    rdma::soft::Builder::new(late).schedule(schedule).install().unwrap();
    for device in ["soft0", "softib0", late] {
        for iterations in ["0", "1", "300"] {
            let arguments = ["ud_pingpong", "--device", device, "--iterations", iterations];
            let line = ud_pingpong::run(&ud_pingpong::Arguments::parse_from(arguments)).unwrap();
            let told = format!("{device}: {iterations} round trips, which makes {iterations}");
            assert_eq!(line, told);
        }
    }
}

#[test]
fn clients_share_the_receives_of_a_server() {
    for device in ["soft0", "softib0"] {
        if lacks(device, Feature::SharedReceiveQueues) {
            continue;
        }
        for messages in [0_u64, 1, 500] {
            let count = messages.to_string();
            let arguments = ["srq", "--device", device, "--messages", &count];
            let told = srq::run(&srq::Arguments::parse_from(arguments)).unwrap();
            let lines: Vec<_> = told.lines().collect();
            assert_eq!(lines[1..], vec![format!("{device}: sent {messages} messages"); 2]);
            let line = lines[0];
            let (total, sum) = (2 * messages, messages * (messages + 1));
            let begin = format!("{device}: {total} messages, their sum is {sum}, filled ");
            let fills = line.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(" times"));
            let fills: u64 = fills.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
            // Sixteen receives at first, then eight to sixteen each time.
            assert!((total.div_ceil(16)..=total / 8 + 1).contains(&fills), "{line}");
        }
    }
}

/// Devices with requests that complete when they are posted, and one where they complete later.
fn soon_and_late(name: &'static str) -> [&'static str; 3] {
    let schedule = rdma::soft::Schedule::Deferred { seed: 2 };
    rdma::soft::Builder::new(name).schedule(schedule).install().unwrap();
    ["soft0", "softib0", name]
}

#[test]
fn channels_send_in_a_scope() {
    for device in soon_and_late("channel_deferred") {
        let arguments = channel::Arguments::parse_from(["channel", "--device", device]);
        let text = channel::run(&arguments).unwrap();
        assert_eq!(
            text,
            "Mem before exchange: 8 8 8 8 0 0 0 0\nMem after exchange: 8 8 8 8 8 8 8 8"
        );
        let arguments = multi_channel::Arguments::parse_from(["multi_channel", "--device", device]);
        let text = multi_channel::run(&arguments).unwrap();
        assert_eq!(text, "Recv mem before: 0 0 0 0\nRecv mem after: 1 1 1 1");
        let arguments = ["multi_channel_scatter_gather", "--device", device];
        let arguments = multi_channel_scatter_gather::Arguments::parse_from(arguments);
        let text = multi_channel_scatter_gather::run(&arguments).unwrap();
        assert_eq!(text, "Recv mem before: 0 0 0 0 0\nRecv mem after: 1 2 3 4 5");
    }
}

#[test]
fn a_receive_without_a_sender_times_out_and_closes_its_channel() {
    for device in soon_and_late("blocking_deferred") {
        let arguments = ["channel_blocking", "--device", device, "--limit", "30"];
        let text =
            channel_blocking::run(&channel_blocking::Arguments::parse_from(arguments)).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "from the other end: hello");
        assert!(lines[1].contains(" did not complete within 30ms"), "{text}");
        assert!(lines[2].contains("closed, since a receive did not complete in time"), "{text}");
        assert_eq!(lines[3..], ["sent"]);
    }
}

/// The same seed finds it each time, after the same virtual time.
#[test]
fn a_simulated_network_finds_the_bug_of_a_protocol() {
    let arguments = replication::Arguments::parse_from(["replication", "--seeds", "8"]);
    let report = replication::run(&arguments).unwrap();
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("length first: seed "), "{report}");
    assert_eq!(lines[1], "entry first: no log was damaged in 8 seeds");
    assert_eq!(replication::run(&arguments).unwrap(), report);
}

#[test]
fn two_nodes_in_one_thread_fail_over_in_virtual_time() {
    let arguments = failover::Arguments::parse_from(["failover", "--seeds", "8"]);
    let report = failover::run(&arguments).unwrap();
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("lease from the acknowledgement: seed "), "{report}");
    assert!(lines[0].contains(": two leaders, after "), "{report}");
    assert_eq!(lines[1], "lease from the send: no mistake in 8 seeds");
    assert_eq!(failover::run(&arguments).unwrap(), report);
}
