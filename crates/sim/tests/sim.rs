//! A million packets of fresh workloads, some thousand messages, some hundred connections, and the same run of a seed in
//! every process.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of `RDMA_TEST_SEED`, or the clock's.
fn seed() -> u64 {
    let given = std::env::var("RDMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    given.unwrap_or_else(clock)
}

/// The program's output for a seed; fails the test if a check fails. `option` is `--packets`, `--messages` or
/// `--connections`.
fn simulated(seed: u64, option: &str, count: u64) -> String {
    let program = env!("CARGO_BIN_EXE_sim");
    let args = ["--seed", &seed.to_string(), option, &count.to_string()];
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Fewer in slow builds: the job `sim` runs an optimized one.
const PACKETS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
const MESSAGES: u64 = if cfg!(debug_assertions) { 300 } else { 3_000 };

#[test]
fn packets_of_fresh_workloads_behave_as_the_model_predicts() {
    let seed = seed();
    println!("RDMA_TEST_SEED={seed}");
    println!("{}", simulated(seed, "--packets", PACKETS));
}

/// `cargo xtask sim --messages` does the same.
#[test]
fn messages_and_streams_behave_as_the_model_predicts() {
    let seed = seed();
    println!("RDMA_TEST_SEED={seed}");
    println!("{}", simulated(seed, "--messages", MESSAGES));
}

/// Some groups have as many ranks as possible. Their events take longer in slow builds.
#[test]
fn groups_of_ranks_return_the_results_of_the_model_or_name_the_dead_rank() {
    let (groups, most) = if cfg!(debug_assertions) { (300, 64) } else { (3_000, 1024) };
    let seed = seed();
    println!("RDMA_TEST_SEED={seed}");
    let events = sim::check_many(seed, groups, most).unwrap();
    assert_eq!(Ok(events), sim::check_many(seed, groups, most));
}

/// Fewer in slow builds.
const CONNECTIONS: u64 = if cfg!(debug_assertions) { 40 } else { 200 };

/// `cargo xtask sim --connections` does the same.
#[test]
fn connections_by_address_end_the_same_at_both_ends() {
    let seed = seed();
    println!("RDMA_TEST_SEED={seed}");
    println!("{}", simulated(seed, "--connections", CONNECTIONS));
}

/// A FetchAdd through a window is in flight when its queue pair is destroyed, and arrives after the window was revoked.
/// The model once mistook its refusal for an error.
#[test]
fn a_request_of_a_destroyed_queue_pair_may_be_refused() {
    succeed("--workload", "0xd4bd6706a3d8a547");
}

/// A late copy of a REQ begins a second passive end, after the active end was established with the first. The model
/// once demanded that the active end confirm the second, too.
#[test]
fn an_end_that_a_late_copy_of_a_request_begins_may_stay_unanswered() {
    succeed("--connection", "0x4008cad");
}

/// Runs the workload of one seed.
#[track_caller]
fn succeed(option: &str, seed: &str) {
    let program = env!("CARGO_BIN_EXE_sim");
    let output = Command::new(program).args([option, seed]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// Each process has other memory addresses, and other hasher keys.
#[test]
fn a_seed_does_the_same_in_every_process() {
    for (option, count) in [("--packets", 30_000), ("--messages", 300), ("--connections", 10)] {
        let once = simulated(7, option, count);
        assert!(once.contains("trace"), "{once}");
        assert_eq!(once, simulated(7, option, count));
        assert_ne!(once.lines().last(), simulated(8, option, count).lines().last());
    }
}

/// The watch does not depend on the workload: with a limit of zero, every workload hangs.
#[test]
fn a_workload_that_takes_too_long_is_named() {
    let program = env!("CARGO_BIN_EXE_sim");
    let args = ["--seed", "7", "--packets", "9000000", "--limit=0"];
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("hangs: workload 0x"), "{text}");
    assert!(text.contains("(seed 0x7)") && text.contains("to repeat: "), "{text}");
}
