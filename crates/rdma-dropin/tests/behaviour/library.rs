//! The library under test, and commands that use it.

use std::env;
use std::process::{Command, Output};

use test_support::packages::skip_without;
pub(crate) use test_support::program::dropin as folder;

/// Returns a command that runs a program of ibverbs-utils or rdmacm-utils with the libraries, or `None` if it is not installed.
pub(crate) fn command(program: &str) -> Option<Command> {
    // The programs of the tests' target may not run on this machine.
    if test_support::program::is_emulated() {
        println!("skipped: `{program}` does not run in an emulator");
        return None;
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&paths).any(|folder| folder.join(program).is_file()) {
        skip_without(&format!("`{program}`"), "ibverbs-utils rdmacm-utils");
        return None;
    }
    Some(with_library(Command::new(program)))
}

pub(crate) fn with_library(mut command: Command) -> Command {
    command.env("LD_LIBRARY_PATH", folder()).env("LD_BIND_NOW", "1").env_remove("RDMA_PROVIDERS");
    command
}

/// Returns the output of a program that succeeds and has nothing to complain about.
pub(crate) fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{stdout}\n{stderr}", output.status)
}
