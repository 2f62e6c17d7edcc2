//! Measurements that succeed.

use std::net::Ipv4Addr;

use serde_json::Value;
use test_support::features::{Feature, lacks};
use test_support::program::is_emulated;

use super::schema::valid_report;
use super::{Listener, errors, perf, succeeds};

/// Returns the operations that the device supports.
fn operations() -> Vec<&'static str> {
    let all = ["write", "read", "send", "atomic"].into_iter();
    all.filter(|operation| *operation != "atomic" || !lacks_atomics("soft0")).collect()
}

fn lacks_atomics(device: &str) -> bool {
    rdma::soft::install();
    lacks(device, Feature::Atomics)
}

/// Returns the report of a run with few iterations, checked.
fn report(arguments: &str) -> Value {
    let report =
        valid_report(&succeeds(&mut perf(&format!("{arguments} --iterations 20 --json -"))));
    for row in report["rows"].as_array().unwrap() {
        let blocks = row["blocks"].as_array().unwrap();
        assert_eq!((blocks.len(), &row["operations"]), (10, &20.into()), "{arguments}: {row}");
        // A copy of a few bytes may take less time than the resolution of the clock.
        let is_copy = row["operation"] == "memcpy";
        let is_positive = |block: &Value| is_copy || block.as_f64().unwrap() > 0.0;
        assert!(blocks.iter().all(is_positive), "{arguments}: {row}");
        let has_latency = arguments.starts_with("lat ");
        assert_eq!(row["latency"].is_object(), has_latency, "{arguments}: {row}");
        if has_latency {
            let at = |name: &str| row["latency"][name].as_u64().unwrap();
            let sorted = ["min", "p50", "p90", "p99", "p999", "max"].map(at);
            assert!(sorted.is_sorted() && (is_copy || sorted[0] > 0), "{arguments}: {row}");
        }
    }
    report
}

/// Returns the values of a column.
fn column<'a>(report: &'a Value, name: &str) -> Vec<&'a Value> {
    report["rows"].as_array().unwrap().iter().map(|row| &row[name]).collect()
}

/// Returns the lengths to measure: odd ones, of one packet and of two.
fn sizes(operation: &str) -> &str {
    if operation == "atomic" { "" } else { "--size 1,5000" }
}

#[test]
fn each_operation_of_queue_pairs_is_measured_between_two_processes() {
    if is_emulated() {
        return; // the program starts itself without the emulator
    }
    for measure in ["lat", "bw", "rate"] {
        for operation in operations() {
            let report = report(&format!("{measure} {operation} {}", sizes(operation)));
            let rows = if operation == "atomic" { 1 } else { 2 };
            assert_eq!(column(&report, "operation"), vec![operation; rows]);
            assert_eq!(column(&report, "measure"), vec![measure; rows]);
        }
    }
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn softroce_is_measured_between_two_processes() {
    for measure in ["lat", "bw", "rate"] {
        for operation in ["write", "read", "send", "atomic"] {
            let sizes = sizes(operation);
            let report = report(&format!("{measure} {operation} {sizes} --device rxe0"));
            assert_eq!(report["device"]["name"], "rxe0");
        }
    }
    for api in ["channel", "async"] {
        let report = report(&format!("lat send --size 8 --device rxe0 --api {api}"));
        assert_eq!(column(&report, "operation"), ["send"]);
    }
}

#[test]
fn each_operation_of_channels_and_futures_is_measured() {
    for api in ["channel", "async"] {
        for measure in ["lat", "bw"] {
            for operation in operations() {
                let sizes = sizes(operation);
                let arguments = format!("{measure} {operation} --api {api} {sizes} --threads");
                let report = report(&arguments);
                let mode = format!("{api}, polling");
                assert!(column(&report, "mode").iter().all(|&found| *found == mode.as_str()));
            }
        }
    }
}

#[test]
fn ends_that_sleep_and_memory_of_others_are_measured() {
    for api in ["qp", "channel", "async"] {
        for run in ["lat send", "lat write", "bw send", "bw read"] {
            let report = report(&format!("{run} --api {api} --wait sleep -s 64 --threads"));
            assert_eq!(column(&report, "mode"), [&format!("{api}, asleep")]);
        }
    }
    for run in ["lat write", "lat read", "bw send", "rate atomic"] {
        if run == "rate atomic" && lacks_atomics("softib0") {
            continue;
        }
        let report = report(&format!("{run} --foreign-memory --threads -s 8 --device softib0"));
        assert!(column(&report, "mode")[0].as_str().unwrap().ends_with(", foreign memory"));
        assert_eq!(report["device"]["name"], "softib0");
    }
    if !lacks("soft0", Feature::Inline(64)) {
        let report = report("lat send --inline 64 --size 64,65 --threads");
        assert_eq!(column(&report, "mode"), ["qp, polling, inline", "qp, polling"]);
    }
}

#[test]
fn rows_combine_sizes_queue_pairs_depths_and_references() {
    for api in ["qp", "channel", "async"] {
        let report = report(&format!(
            "rate send --api {api} -s 8,1K --queue-pairs 1,3 --depth 2,5 --scale --threads"
        ));
        let rows = report["rows"].as_array().unwrap();
        let row = |row: &Value| {
            let [bytes, queue_pairs, depth] =
                ["bytes", "queue_pairs", "depth"].map(|name| row[name].as_u64().unwrap());
            (row["operation"].as_str().unwrap().to_owned(), bytes, queue_pairs, depth)
        };
        let mut expected = Vec::new();
        for bytes in [8, 1024] {
            for (queue_pairs, depth) in [(1, 2), (1, 5), (3, 2), (3, 5)] {
                expected.push(("send".to_owned(), bytes, queue_pairs, depth));
            }
            expected.push(("tcp".to_owned(), bytes, 1, 1));
            expected.push(("memcpy".to_owned(), bytes, 1, 1));
        }
        assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), expected);
    }
    let latencies = report("lat read -s 8 --scale --threads");
    assert_eq!(column(&latencies, "operation"), ["read", "tcp", "memcpy"]);
}

#[test]
fn a_listener_and_a_client_print_what_they_do() {
    let mut listener = Listener::start(&mut perf(""));
    let json = std::env::temp_dir().join(format!("rdmatool-perf-{}.json", std::process::id()));
    let mut client = perf("bw write -s 4K -n 20");
    let client = client.args(["--connect", &listener.address, "--json"]).arg(&json);
    let table = succeeds(client);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(
        lines[0].starts_with("soft0 (soft), path MTU 4096") && lines[0].contains("MB/s"),
        "{table}"
    );
    assert!(lines[1].contains("bytes") && lines[2].starts_with("write        4096"), "{table}");
    valid_report(&std::fs::read_to_string(&json).unwrap());
    std::fs::remove_file(&json).unwrap();
    assert!(listener.line().ends_with(" measures bw write"));
    let output = listener.finish();
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn the_ends_of_two_addresses_talk_by_udp() {
    // Addresses of the loopback interface that no other test uses.
    let address = |end| Ipv4Addr::from_bits(0x7f80_0000 | (std::process::id() & 0xffff) << 4 | end);
    for run in ["lat send", "lat write", "bw read", "bw send"] {
        let mut server = perf("--gid-index 4");
        // On a busy machine, a peer may not be scheduled for longer than the usual time.
        server.env("RDMA_SOFT_RETRY_TIME", "60").env("RDMA_SOFT_LISTEN", address(1).to_string());
        let listener = Listener::start(&mut server);
        let mut client = perf(&format!("{run} --gid-index 4 -s 8,5000 -n 20 --json -"));
        client.env("RDMA_SOFT_RETRY_TIME", "60").env("RDMA_SOFT_LISTEN", address(2).to_string());
        valid_report(&succeeds(client.args(["--connect", &listener.address])));
        let output = listener.finish();
        assert!(output.status.success(), "{}", errors(&output));
    }
}
