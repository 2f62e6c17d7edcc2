//! Tests that need a process of their own.
#![cfg(feature = "soft")]

use std::env;
use std::process::Command;

/// Runs the work of the named test in a process of its own, after `prepare` has completed the command.
pub(crate) fn in_child(test: &str, prepare: impl FnOnce(&mut Command), work: impl FnOnce()) {
    if env::var_os("IN_CHILD").is_some() {
        return work();
    }
    let mut program = Command::new(env::current_exe().unwrap());
    program.args(["--exact", test, "--nocapture"]).env("IN_CHILD", "1");
    prepare(&mut program);
    let child = program.output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}
