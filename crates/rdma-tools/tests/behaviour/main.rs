//! `rdmatool`, run as a user runs it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod devices;
mod perf;

use std::process::Output;

/// Runs `rdmatool` with these arguments to its end.
fn rdmatool(arguments: &[&str]) -> Output {
    let mut program = test_support::program::command(env!("CARGO_BIN_EXE_rdmatool"));
    program.args(arguments).output().unwrap()
}

/// Standard output of a run that succeeds. Without libibverbs, standard error has a warning.
fn printed(arguments: &[&str]) -> String {
    let output = rdmatool(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
