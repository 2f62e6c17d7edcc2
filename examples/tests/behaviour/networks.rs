//! Programs of several processes whose hosts are in a configuration file.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use tempfile::TempDir;
use test_support::loopback::free_address;

use crate::common::process::{Process, command};

/// Writes the configuration of three ranks on this host.
fn network() -> (TempDir, String) {
    let (folder, address) = (TempDir::new().unwrap(), free_address());
    let (host, port) = (address.ip(), address.port());
    let node =
        |rank| format!(r#"{{"hostname":"{host}","port":{port},"ibdev":"soft0","rankid":{rank}}}"#);
    let path = folder.path().join("network.json");
    fs::write(&path, format!(r#"{{"hosts":[{},{},{}]}}"#, node(2), node(0), node(1))).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// Starts the three ranks of a program.
fn ranks(program: &str, path: &str, options: &[&str]) -> [Process; 3] {
    ["0", "1", "2"].map(|rank| {
        let mut command = command(program, &[&[path, rank], options].concat());
        Process::of(command.stdin(Stdio::piped()))
    })
}

#[test]
fn rank_0_receives_four_bytes_from_each_other_rank() {
    for device in ["soft0", "softib0"] {
        let (_folder, path) = network();
        let ranks = ranks("network", &path, &["--device", device]);
        let lines = ranks.map(Process::succeed);
        assert_eq!(lines[0], "Mem after: 1 1 1 1 2 2 2 2");
        assert_eq!(lines[1..], ["Rank 1 has sent", "Rank 2 has sent"]);
    }
}

#[test]
fn a_rank_that_the_file_does_not_contain_is_an_error() {
    let (_folder, path) = network();
    for program in ["network", "network_barrier_test", "network_barrier_test_random"] {
        let error = Process::example(program, &[&path, "3"]).fail();
        assert_eq!(error, "error: no such rank\n");
    }
}

#[test]
fn ranks_leave_a_barrier_when_all_have_input() {
    let (_folder, path) = network();
    let mut ranks = ranks("network_barrier_test", &path, &["--limit", "60"]);
    let mut inputs = ranks.each_mut().map(|rank| rank.0.stdin.take().unwrap());
    for last in 0..3 {
        for rank in (0..3).filter(|rank| *rank != last) {
            writeln!(inputs[rank]).unwrap();
            ranks[rank].line("Barrier start!");
        }
        writeln!(inputs[last]).unwrap();
        ranks.iter_mut().for_each(|rank| drop(rank.line("Barrier end!")));
    }
    let lines = ranks.map(Process::succeed);
    assert_eq!(lines, ["Rank 0 has ended", "Rank 1 has ended", "Rank 2 has ended"]);
}

#[test]
fn a_rank_without_input_is_named_after_the_limit() {
    let (_folder, path) = network();
    let mut ranks = ranks("network_barrier_test", &path, &["--limit", "20"]);
    ranks[2].line("Press enter...");
    let input = ranks[2].0.stdin.take();
    // Rank 0 waits for all others in order, and rank 1 for rank 0.
    for rank in [1, 0] {
        writeln!(ranks[rank].0.stdin.take().unwrap()).unwrap();
        ranks[rank].line("Barrier start!");
    }
    let [first, second, third] = ranks;
    let error = first.fail();
    assert!(error.starts_with("error: no notice of rank 2 arrived within 20s: "), "{error}");
    assert!(second.fail().contains("rank 0"));
    drop(input);
    assert!(third.fail().contains("rank 0"));
}

#[test]
fn many_barriers_with_a_late_rank_succeed() {
    let (_folder, path) = network();
    let options = ["--barriers", "100", "--limit", "60"];
    let ranks = ranks("network_barrier_test_random", &path, &options);
    for (rank, process) in ranks.into_iter().enumerate() {
        let output = process.end();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("Waited barrier ")).count(), 100);
        assert!(text.ends_with(&format!("Rank {rank} has ended\n")), "{text}");
    }
}
