//! `rdmatool`, run like a user runs it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod compare;
mod devices;
mod doctor;
mod doctor_peer;
mod perf;
mod perftest;
mod plot;
mod report;
mod run;

use std::process::{Command, Output};

/// The prefixes of the variables that only tests and `cargo xtask ci` read. `doctor` warns of them.
const OF_TESTS: [&str; 3] = ["RDMA_CI_", "RDMA_STRESS_", "RDMA_TEST_"];

/// Returns the command `rdmatool` with these arguments and without the variables of tests.
fn program(arguments: &[&str]) -> Command {
    let mut program = test_support::program::command(env!("CARGO_BIN_EXE_rdmatool"));
    for (name, _) in std::env::vars_os() {
        if OF_TESTS.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            program.env_remove(name);
        }
    }
    program.args(arguments);
    program
}

/// Runs `rdmatool` with these arguments to its end.
fn rdmatool(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// Returns the standard output of a run that succeeds. Without libibverbs, standard error has a
/// warning.
fn printed(arguments: &[&str]) -> String {
    let output = rdmatool(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
