//! How many instructions a write of 8 B costs, from its post to its polled completion, when a device
//! holds few objects and when it holds many.
//!
//! Instructions, unlike nanoseconds, are the same in each run, so that this is a check: it fails if
//! one of many costs more than [`MOST`] times one alone. It runs itself under callgrind with n and
//! with 2n operations; the difference is the operations alone. Without valgrind it says so and checks
//! nothing.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench that fails says so.

use std::env;
use std::hint::black_box;
use std::process::{Command, ExitCode};

use many::{Count, Many};

#[path = "../device/many.rs"]
mod many;
#[path = "../device/prepared.rs"]
mod prepared;
#[path = "../../tests/device/rig/mod.rs"]
mod rig;

const MOST: f64 = 1.2;
const OPERATIONS: u64 = 10_000;

/// In the environment of a run under callgrind: the scenario's name and how many operations.
const SCENARIO: &str = "RDMA_SOFT_SCENARIO";
const COUNT: &str = "RDMA_SOFT_OPERATIONS";

/// A name, how connections and regions are used, and whether the result is checked.
type Scenario = (&'static str, Count, Count, bool);

const SCENARIOS: [Scenario; 5] = [
    ("1 queue pair, 1 region", Count::OneOf(1), Count::OneOf(1), true),
    ("1 of 1,000 queue pairs", Count::OneOf(1_000), Count::OneOf(1), true),
    ("1,000 queue pairs in turn", Count::AllOf(1_000), Count::OneOf(1), false),
    ("1 of 100,000 regions", Count::OneOf(1), Count::OneOf(100_000), true),
    ("100,000 regions in turn", Count::OneOf(1), Count::AllOf(100_000), false),
];

fn main() -> ExitCode {
    if let (Ok(scenario), Ok(count)) = (env::var(SCENARIO), env::var(COUNT)) {
        let found = SCENARIOS.into_iter().find(|known| known.0 == scenario);
        let (_, connections, regions, _) = found.expect("a scenario of this list");
        let mut many = Many::new(connections, regions);
        many.write();
        counted(&mut many, count.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    // `cargo test --benches` only wants to see that it starts.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!(
            "instructions: NOT CHECKED, valgrind is missing (Debian: apt-get install valgrind)"
        );
        return ExitCode::SUCCESS;
    }
    let mut alone = 0.0;
    let mut flat = true;
    for scenario in SCENARIOS {
        let cost = instructions_per_operation(scenario.0);
        alone = if alone == 0.0 { cost } else { alone };
        let ratio = cost / alone;
        let too_much = scenario.3 && ratio > MOST;
        let remark = if too_much { "  TOO MUCH" } else { "" };
        println!("{:<28}{cost:>8.1} instructions{ratio:>8.3}{remark}", scenario.0);
        flat &= !too_much;
    }
    if flat { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What callgrind counts. It finds the function by its name.
#[inline(never)]
fn counted(many: &mut Many, operations: u64) {
    for _ in 0..operations {
        black_box(&mut *many).write();
    }
}

fn instructions_per_operation(scenario: &str) -> f64 {
    let (once, twice) = (callgrind(scenario, OPERATIONS), callgrind(scenario, 2 * OPERATIONS));
    (twice - once) as f64 / OPERATIONS as f64
}

fn callgrind(scenario: &str, operations: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted*", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().expect("the path of this program"))
        .env(SCENARIO, scenario)
        .env(COUNT, operations.to_string())
        .output()
        .expect("valgrind starts");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    // "==123== Collected : 456"
    let collected = report.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.expect("callgrind says what it collected").1.trim();
    count.parse().expect("a number of instructions")
}
