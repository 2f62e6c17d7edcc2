//! `rdma-soft-run`, which runs programs with the library.

mod files;
mod redirected;
mod refusals;
mod renamed;
mod setuid;
mod stats;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::library::{folder, text};

const PROGRAM: &str = "rdma-soft-run";
/// The number of a user without rights. Tests that run as root run programs as this user. It differs from the number
/// that stands for unknown users in a user namespace.
const OTHER_USER: u32 = 31415;

/// Returns a command that runs `rdma-soft-run`, or `None` if this machine cannot run it.
fn soft_run() -> Option<Command> {
    soft_run_in(folder().parent().unwrap())
}

fn soft_run_in(installed: &Path) -> Option<Command> {
    if test_support::program::is_emulated() {
        println!("skipped: {PROGRAM} is not built for the emulated processor");
        return None;
    }
    let mut command = Command::new(installed.join("bin").join(PROGRAM));
    for variable in ["LD_LIBRARY_PATH", "LD_PRELOAD", "RDMA_PROVIDERS"] {
        command.env_remove(variable);
    }
    Some(command)
}

/// A copy of the built folder that every user can read.
struct Installed(TempDir);

impl Installed {
    fn new() -> Self {
        let target = tempfile::tempdir().unwrap();
        let public = |path: &Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        public(target.path());
        let files =
            [("bin", PROGRAM), ("lib", "libibverbs.so.1"), ("lib", "librdma_soft_files.so")];
        for (name, file) in files {
            let place = target.path().join(name);
            fs::create_dir_all(&place).unwrap();
            public(&place);
            // `cp` writes the file. If this process did, a program that another test starts could hold
            // the file open for writing for a moment, and the system would refuse to execute it.
            let built = folder().with_file_name(name).join(file);
            assert!(Command::new("cp").arg(built).arg(&place).status().unwrap().success());
            public(&place.join(file));
        }
        Self(target)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn library(&self) -> PathBuf {
        self.path().join("lib")
    }
}

/// Makes the command run without the rights of root.
fn without_rights(command: &mut Command) -> &mut Command {
    let is_root = rustix::process::geteuid().is_root();
    let command = command.current_dir("/");
    if is_root { command.uid(OTHER_USER).gid(OTHER_USER) } else { command }
}

/// Runs the command, and returns its output unless the system refuses namespaces, as many containers do.
fn with_files(command: &mut Command) -> Option<Output> {
    let output = command.output().unwrap();
    if text(&output).contains("the system refuses") {
        println!("skipped: {}", text(&output));
        return None;
    }
    assert!(output.status.success(), "{}", text(&output));
    Some(output)
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_devices_and_the_library_are_announced() {
    let Some(mut command) = soft_run() else { return };
    let output = command.arg("true").output().unwrap();
    let announced = stderr(&output);
    let library = folder().join("libibverbs.so.1").canonicalize().unwrap();
    let devices = "rdma-soft-run: soft0 (Ethernet), softib0 (InfiniBand) from";
    let expected = format!("{devices} {}\n", library.display());
    assert!(announced.starts_with(&expected), "{announced}");
    assert!(announced.contains("/sys/class/infiniband"), "{announced}");
}

#[test]
fn programs_that_link_with_libibverbs_list_the_devices() {
    let Some(ibv_devices) = crate::library::command("ibv_devices") else { return };
    let Some(mut command) = soft_run() else { return };
    let output = command.arg(ibv_devices.get_program()).output().unwrap();
    let list = stdout(&output);
    assert!(output.status.success(), "{}", text(&output));
    assert!(list.contains("soft0") && list.contains("softib0"), "{list}");
}

#[test]
fn the_program_gets_its_arguments_and_the_devices() {
    let Some(mut command) = soft_run() else { return };
    let script = r#"printf '%s|' "$0" "$@" "$RDMA_SOFT_DEVICES""#;
    let output = command.args(["--devices", "soft0", "sh", "-c", script, "--stats", "a b", ""]);
    let output = output.output().unwrap();
    assert_eq!(stdout(&output), "--stats|a b||soft0|", "{}", text(&output));
}

#[test]
fn the_variables_keep_their_other_entries() {
    let Some(mut command) = soft_run() else { return };
    command.env("LD_LIBRARY_PATH", "/elsewhere");
    let output = command.args(["sh", "-c", "echo $LD_LIBRARY_PATH $LD_PRELOAD"]).output().unwrap();
    let lib = folder().canonicalize().unwrap();
    let lib = lib.display();
    assert_eq!(stdout(&output), format!("{lib}:/elsewhere {lib}/libibverbs.so.1\n"));
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    for options in
        [&[][..], &["--stats"], &["--devices", "soft0"], &["--no-files"], &["--no-namespace"]]
    {
        let Some(mut command) = soft_run() else { return };
        let output = command.args(options).args(["sh", "-c", "exit 7"]).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{options:?}: {}", text(&output));
    }
}
