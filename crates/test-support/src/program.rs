//! Starts programs that are built for the tests' target, which may differ from this machine. If an
//! emulator runs the tests, it must also run the programs that they start.

use std::env;
use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The environment variable with the command, including arguments, that starts programs built for
/// the target, as in cargo's `runner`. It is not set if the kernel can start them itself.
const EMULATOR: &str = "RDMA_TEST_EMULATOR";

/// The environment variable that marks the separate process of [`in_own_process`].
const OWN: &str = "RDMA_TEST_OWN_PROCESS";

/// Adds the option `--device`: the name of a device, or the description of a new one as in
/// `RDMA_SOFT_DEVICES`.
pub fn on<'a>(command: &'a mut Command, device: &str) -> &'a mut Command {
    let name = device.split(',').next().unwrap_or_default();
    if name != device {
        command.env("RDMA_SOFT_DEVICES", device);
    }
    command.args(["--device", name])
}

/// Returns the descriptions of devices that reach each other by UDP. Each number belongs to one test
/// of this process.
#[must_use]
pub fn devices_by_udp<const COUNT: usize>(numbers: [u32; COUNT]) -> [String; COUNT] {
    numbers.map(|number| {
        let own = (std::process::id() & 0x7fff) << 7;
        let address = Ipv4Addr::from_bits(0x7f40_0000 | own | number);
        format!("udp{number},address={address}")
    })
}

/// Returns a command that runs this program, which must be built for the target.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    words_of(env::var(EMULATOR).ok().as_deref(), program.as_ref())
}

/// Returns a command that runs the calling test's program again.
///
/// # Panics
/// Panics if the system does not report the path of the program.
#[expect(clippy::expect_used, reason = "a failing helper fails its test")]
#[must_use]
pub fn this_program() -> Command {
    command(env::current_exe().expect("the path of this program"))
}

/// Runs `work` in a separate process, which runs this program again with only this test. The test
/// must consist of this call alone. `test` is its name, including the path of its module. The output
/// of that process is printed.
///
/// # Panics
/// Panics if that process fails, or if it has no test with this name.
pub fn in_own_process(test: &str, work: impl FnOnce()) {
    in_own_process_with(test, |_| {}, work);
}

/// Like [`in_own_process`], but calls `prepare` on the command first, for example to change its
/// environment.
///
/// # Panics
/// Panics like [`in_own_process`].
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
    print!("{said}");
}

/// Returns true if an emulator runs the tests. Some effects that a test would attribute to the
/// program may come from the emulator.
#[must_use]
pub fn is_emulated() -> bool {
    env::var_os(EMULATOR).is_some_and(|emulator| !emulator.is_empty())
}

/// Builds the drop-in libraries once, and returns their folder. The build also compares their symbols.
///
/// # Panics
/// Panics if the build fails.
#[expect(clippy::expect_used, reason = "a failing helper fails its test")]
pub fn dropin() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["run", "--quiet", "--package", "xtask", "--", "dropin"]);
        // This program may run in a runner, which would also get xtask.
        let is_runner =
            |name: &String| name.starts_with("CARGO_TARGET_") && name.ends_with("_RUNNER");
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(is_runner).for_each(|name| _ = cargo.env_remove(name));
        // A library that is compiled with a sanitizer has symbols that only its programs define.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
        let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
        let [said, failure] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{}\n{said}\n{failure}", output.status);
        let library = Path::new(said.lines().next().expect("the path of a library"));
        library.parent().expect("its folder").to_owned()
    })
}

/// Returns the C compiler for programs that run on the target: the value of `CC`, or `cc`.
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

/// Waits until all other threads of this process sleep. Before that, a device's threads may still
/// allocate.
///
/// # Panics
/// Panics if `/proc` cannot be read.
#[allow(clippy::expect_used)] // a helper of tests
pub fn await_threads() {
    let own = std::fs::read_link("/proc/thread-self").expect("this thread");
    let sleeps = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name in parentheses (`man 5 proc_pid_stat`). If the thread has
        // ended, the file is missing.
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
    fn this_program_can_be_run_again() {
        let listed = this_program().args(["--list", "--exact", "no such test"]).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
    }
}
