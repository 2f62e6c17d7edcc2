//! The library under test, and commands that use it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Builds the library once, and returns its folder. The build also compares the library's symbols.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["run", "--quiet", "--package", "xtask", "--", "dropin"]);
        // This program may run in a runner, which would also get xtask.
        let is_runner =
            |name: &String| name.starts_with("CARGO_TARGET_") && name.ends_with("_RUNNER");
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(is_runner).for_each(|name| _ = cargo.env_remove(name));
        let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let stdout = String::from_utf8_lossy(&output.stdout);
        Path::new(stdout.lines().next().unwrap()).parent().unwrap().to_owned()
    })
}

/// Returns a command that runs a program of ibverbs-utils or rdmacm-utils with the libraries, or `None` if it is not installed.
pub(crate) fn command(program: &str) -> Option<Command> {
    // The programs of the tests' target may not run on this machine.
    if test_support::program::is_emulated() {
        println!("skipped: `{program}` does not run in an emulator");
        return None;
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&paths).any(|folder| folder.join(program).is_file()) {
        println!(
            "skipped: `{program}` is not installed (Debian: apt-get install ibverbs-utils rdmacm-utils)"
        );
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
