//! The number of instructions for a write of 8 B, from its post to its polled completion. It is measured on a device
//! with few objects and with many. The bench also counts the instructions of calls that withdraw access, and of an
//! engine that only writes.
//!
//! Instructions, unlike nanoseconds, hardly differ between runs, so this is a check. It fails if a write with one of
//! many objects costs more than [`MOST`] times a write with a single object. For calls, this limit is
//! [`MOST_OF_CALLS`]. It runs itself under callgrind with n and with 2n operations; the difference is the cost of n
//! operations. It fails without valgrind.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench panics if it fails.
#![allow(clippy::cast_possible_truncation)] // rdma-sys is only for 64-bit targets.

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use calls::{CALLS, Call, Calls};
use many::{Count, Many};
use mock::Mock;
use test_support::callgrind::{bench, per_operation};

mod calls;
mod many;
mod mock;
mod prepared;

const MOST: f64 = 1.2;
/// The limit of a call among many queue pairs. A call that releases a key follows the secret order of keys, and has
/// cost from 680 to 850 instructions. Code that visits each queue pair costs hundreds of times as much.
const MOST_OF_CALLS: f64 = 2.0;
const OPERATIONS: u64 = 10_000;
/// The number of calls. Each needs an object of its own.
const FEW: u64 = 100;

/// In the environment of a run under callgrind: the scenario's name.
const SCENARIO: &str = "RDMA_SOFT_SCENARIO";

#[derive(Clone, Copy)]
enum Work {
    /// The use of connections and regions.
    Writes(Count, Count),
    MockWrites,
    /// Calls in a domain of that many connections.
    Calls(Call, usize),
}

/// A name, the work, and whether the result is checked.
type Scenario = (&'static str, Work, bool);

/// Each is compared with the first.
const WRITES: [Scenario; 6] = [
    ("1 queue pair, 1 region", Work::Writes(Count::OneOf(1), Count::OneOf(1)), true),
    ("1 of 1,000 queue pairs", Work::Writes(Count::OneOf(1_000), Count::OneOf(1)), true),
    ("1,000 queue pairs in turn", Work::Writes(Count::AllOf(1_000), Count::OneOf(1)), false),
    ("1 of 100,000 regions", Work::Writes(Count::OneOf(1), Count::OneOf(100_000)), true),
    ("100,000 regions in turn", Work::Writes(Count::OneOf(1), Count::AllOf(100_000)), false),
    ("a mock engine", Work::MockWrites, false),
];

/// Few and many connections, each of two queue pairs, beside the objects that a call destroys.
const CONNECTIONS: [usize; 2] = [1, 5_000];

fn main() -> ExitCode {
    if let Ok(scenario) = env::var(SCENARIO) {
        rdma_soft::install();
        run(find(&scenario).expect("a scenario of these lists"));
        return ExitCode::SUCCESS;
    }
    bench(compare)
}

fn call_name(name: &str, connections: usize) -> String {
    format!("{name}, {} queue pairs", 2 * connections)
}

fn find(scenario: &str) -> Option<Work> {
    let write = WRITES.into_iter().find(|known| known.0 == scenario).map(|known| known.1);
    let named = |(name, call)| {
        let of = |&connections: &usize| call_name(name, connections) == scenario;
        CONNECTIONS.into_iter().find(of).map(|connections| Work::Calls(call, connections))
    };
    write.or_else(|| CALLS.into_iter().find_map(named))
}

/// Runs the work once before counting, so that the first count does not include the cost of first uses.
fn run(work: Work) {
    match work {
        Work::Writes(connections, regions) => {
            let mut many = Many::new(connections, regions);
            (0..OPERATIONS).for_each(|_| many.write());
            [1, 2].into_iter().for_each(|times| writes_counted(&mut many, times * OPERATIONS));
        }
        Work::MockWrites => {
            let mut mock = Mock::new();
            (0..OPERATIONS).for_each(|_| mock.write());
            [1, 2].into_iter().for_each(|times| mock_counted(&mut mock, times * OPERATIONS));
        }
        Work::Calls(call, connections) => {
            let many = Many::new(Count::OneOf(connections), Count::OneOf(1));
            let mut calls = Calls::new(call, many);
            calls.prepare(4 * FEW as usize);
            (0..FEW).for_each(|_| calls.one());
            [1, 2].into_iter().for_each(|times| calls_counted(&mut calls, times * FEW));
        }
    }
}

// The functions that callgrind counts. It finds them by their names.

#[inline(never)]
fn writes_counted(many: &mut Many, operations: u64) {
    for _ in 0..operations {
        black_box(&mut *many).write();
    }
}

#[inline(never)]
fn mock_counted(mock: &mut Mock, operations: u64) {
    for _ in 0..operations {
        black_box(&mut *mock).write();
    }
}

#[inline(never)]
fn calls_counted(calls: &mut Calls, operations: u64) {
    for _ in 0..operations {
        black_box(&mut *calls).one();
    }
}

/// Prints the tables. Returns true if everything is within the limits.
fn compare() -> Result<bool, String> {
    let mut flat = true;
    let mut row = |name: &str, cost: f64, alone: f64, most: Option<f64>| {
        let ratio = cost / alone;
        let too_much = most.is_some_and(|most| ratio > most);
        let remark = if too_much { "  TOO MUCH" } else { "" };
        println!("{name:<40}{cost:>8.1} instructions{ratio:>8.3}{remark}");
        flat &= !too_much;
    };
    let mut alone = None;
    for (name, _, checked) in WRITES {
        let cost = instructions_per_operation(name, OPERATIONS)?;
        row(name, cost, *alone.get_or_insert(cost), checked.then_some(MOST));
    }
    for (name, _) in CALLS {
        let mut few = None;
        for connections in CONNECTIONS {
            let name = call_name(name, connections);
            let cost = instructions_per_operation(&name, FEW)?;
            row(&name, cost, *few.get_or_insert(cost), Some(MOST_OF_CALLS));
        }
    }
    Ok(flat)
}

fn instructions_per_operation(scenario: &str, operations: u64) -> Result<f64, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    per_operation(&[(SCENARIO, scenario)], folder, operations)
}
