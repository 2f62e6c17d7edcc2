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

use std::process::{Command, Output};

/// Returns the command `rdmatool` with these arguments. It does not see the variables that only tests
/// read, since `doctor` warns of them.
fn program(arguments: &[&str]) -> Command {
    let mut program = test_support::program::command(env!("CARGO_BIN_EXE_rdmatool"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RDMA_TEST_") {
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
