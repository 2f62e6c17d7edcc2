//! Programs that were built for the target of the tests, which need not be this machine: where an emulator
//! runs the tests, what they start has to be run by it too.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::Command;

/// What starts programs of the target, with its arguments, as in cargo's `runner`; unset where the kernel
/// does.
const EMULATOR: &str = "RDMA_TEST_EMULATOR";

/// Set in the second process of [`in_own_process`].
const OWN: &str = "RDMA_TEST_OWN_PROCESS";

/// A command that runs this program of the target.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    words_of(env::var(EMULATOR).ok().as_deref(), program.as_ref())
}

/// A command that runs this test's own program once more.
///
/// # Panics
/// If the system does not say where it is.
#[expect(clippy::expect_used, reason = "a failing helper fails its test")]
#[must_use]
pub fn this_program() -> Command {
    command(env::current_exe().expect("the place of this program"))
}

/// Runs `work` in a process of its own: this program once more, with that test alone, which is all of the test. Its name
/// has the path of its module.
///
/// # Panics
/// If that process fails, or has no test of that name.
pub fn in_own_process(test: &str, work: impl FnOnce()) {
    in_own_process_with(test, |_| {}, work);
}

/// Same as [`in_own_process`], with a command that was prepared: the environment of the process, for one.
///
/// # Panics
/// Same as [`in_own_process`].
#[expect(clippy::expect_used, reason = "a failing helper fails its test")]
pub fn in_own_process_with(test: &str, prepare: impl FnOnce(&mut Command), work: impl FnOnce()) {
    if env::var_os(OWN).is_some() {
        return work();
    }
    let arguments = ["--exact", test, "--nocapture"];
    let mut program = this_program();
    prepare(&mut program);
    let output = program.args(arguments).env(OWN, "1").output().expect("a second process");
    let said = String::from_utf8_lossy(&output.stdout);
    let failure = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(" 1 passed"), "`{test}`: {said}{failure}");
}

/// Whether an emulator runs the tests, which may do by itself what a test would blame on the program.
#[must_use]
pub fn is_emulated() -> bool {
    env::var_os(EMULATOR).is_some_and(|emulator| !emulator.is_empty())
}

/// The C compiler that makes programs of the target: what `CC` says, or `cc`.
#[must_use]
pub fn c_compiler() -> Command {
    Command::new(env::var_os("CC").unwrap_or_else(|| OsString::from("cc")))
}

fn words_of(emulator: Option<&str>, program: &OsStr) -> Command {
    let mut words = emulator.into_iter().flat_map(str::split_whitespace).map(OsStr::new);
    let Some(first) = words.next() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

/// Waits until all other threads of this process sleep: until then those that a device has started may allocate.
///
/// # Panics
/// If `/proc` cannot be read.
#[allow(clippy::expect_used)] // a helper of tests
pub fn await_threads() {
    let own = std::fs::read_link("/proc/thread-self").expect("this thread");
    let sleeps = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // Behind the name, `man 5 proc_pid_stat`; a thread that has ended has none.
        let state = stat.rsplit_once(") ").map_or("S", |(_, behind)| behind);
        Some(&*thread.file_name()) == own.file_name() || state.starts_with('S')
    };
    let threads = || std::fs::read_dir("/proc/self/task").expect("its threads").flatten();
    while !threads().all(sleeps) {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(emulator: Option<&str>) -> Vec<OsString> {
        let command = words_of(emulator, OsStr::new("a b"));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_owned).collect()
    }

    #[test]
    fn an_emulator_goes_before_the_program_with_its_own_arguments() {
        assert_eq!(line(Some("emulate -L /root")), ["emulate", "-L", "/root", "a b"]);
        assert_eq!(line(Some("")), ["a b"]);
        assert_eq!(line(None), ["a b"]);
    }

    #[test]
    fn work_runs_in_the_second_process_alone() {
        let test = "program::tests::work_runs_in_the_second_process_alone";
        let mut ran = false;
        in_own_process(test, || ran = true);
        assert_eq!(ran, env::var_os(OWN).is_some());
    }

    #[test]
    #[should_panic = "own_process_that_fails_is_a_failure"]
    fn an_own_process_that_fails_is_a_failure() {
        let test = "program::tests::an_own_process_that_fails_is_a_failure";
        in_own_process(test, || std::process::exit(3));
    }

    #[test]
    #[should_panic = "no such test"]
    fn an_own_process_without_that_test_is_a_failure() {
        in_own_process("no such test", || ());
    }

    #[test]
    fn this_program_runs_once_more() {
        let listed = this_program().args(["--list", "--exact", "no such test"]).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
    }
}
