//! How many instructions a write of 8 B costs, from its post to its polled completion, when a device
//! holds few objects and when it holds many.
//!
//! Instructions, unlike nanoseconds, are the same in each run, so that this is a check: it fails if
//! one of many costs more than [`MOST`] times one alone. It runs itself under callgrind with n and
//! with 2n operations; the difference is the operations alone. It fails without valgrind.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench that fails says so.

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use many::{Count, Many};
use test_support::callgrind::{bench, profiles};

#[path = "../device/many.rs"]
mod many;
#[path = "../device/prepared.rs"]
mod prepared;

const MOST: f64 = 1.2;
const OPERATIONS: u64 = 10_000;

/// In the environment of a run under callgrind: the scenario's name.
const SCENARIO: &str = "RDMA_SOFT_SCENARIO";

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
    if let Ok(scenario) = env::var(SCENARIO) {
        let found = SCENARIOS.into_iter().find(|known| known.0 == scenario);
        rdma_soft::install();
        let (_, connections, regions, _) = found.expect("a scenario of this list");
        let mut many = Many::new(connections, regions);
        // So that what only the first use of each costs is not in the first count.
        (0..OPERATIONS).for_each(|_| many.write());
        counted(&mut many, OPERATIONS);
        counted(&mut many, 2 * OPERATIONS);
        return ExitCode::SUCCESS;
    }
    bench(compare)
}

/// Prints the table. Whether all is within the limit.
fn compare() -> Result<bool, String> {
    let mut alone = 0.0;
    let mut flat = true;
    for scenario in SCENARIOS {
        let cost = instructions_per_operation(scenario.0)?;
        alone = if alone == 0.0 { cost } else { alone };
        let ratio = cost / alone;
        let too_much = scenario.3 && ratio > MOST;
        let remark = if too_much { "  TOO MUCH" } else { "" };
        println!("{:<28}{cost:>8.1} instructions{ratio:>8.3}{remark}", scenario.0);
        flat &= !too_much;
    }
    Ok(flat)
}

/// What callgrind counts. It finds the function by its name.
#[inline(never)]
fn counted(many: &mut Many, operations: u64) {
    for _ in 0..operations {
        black_box(&mut *many).write();
    }
}

fn instructions_per_operation(scenario: &str) -> Result<f64, String> {
    let profiles = profiles(&[(SCENARIO, scenario)], Path::new(env!("CARGO_TARGET_TMPDIR")))?;
    let [once, twice] = &profiles[..] else { return Err("not two runs".to_owned()) };
    Ok((twice.total() - once.total()) as f64 / OPERATIONS as f64)
}
