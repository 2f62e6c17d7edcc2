//! Programs and libraries that cannot be used.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::library::{output, text};
use crate::run::{Installed, OTHER_USER, soft_run, soft_run_in, stderr, without_rights};

/// Asserts that a run fails with this status and reason.
fn refused(command: &mut Command, status: i32, reason: &str) {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{}", text(&output));
    let printed = stderr(&output);
    assert!(printed.starts_with("rdma-soft-run: ") && printed.contains(reason), "{printed}");
}

/// Compiles a program of one function for the linker's options.
fn program(folder: &Path, name: &str, source: &str, options: &[&str]) -> String {
    let (program, file) = (folder.join(name), folder.join("source.c"));
    fs::write(&file, source).unwrap();
    let mut compiler = test_support::program::c_compiler();
    output({
        compiler.arg("-o").arg(&program).arg(&file).args(options);
        compiler
    });
    program.to_str().unwrap().to_owned()
}

#[test]
fn missing_programs_and_files_without_execute_permission_are_refused() {
    let Some(mut command) = soft_run() else { return };
    refused(command.arg("no-such-program"), 127, "was not found in the folders of PATH");
    refused(
        soft_run().unwrap().args(["--stats", "/no/such"]),
        127,
        "/no/such was not found; check",
    );
    refused(soft_run().unwrap().arg("/etc/passwd"), 126, "/etc/passwd does not start");
}

#[test]
fn programs_that_load_no_library_are_refused() {
    let Some(mut command) = soft_run() else { return };
    let folder = tempfile::tempdir().unwrap();
    let start = "void _start(void) {}";
    let path = program(folder.path(), "static", start, &["-static", "-nostdlib"]);
    refused(command.arg(&path), 126, "static is statically linked");
    let path = program(folder.path(), "static-pie", start, &["-static-pie", "-nostdlib"]);
    refused(soft_run().unwrap().arg(&path), 126, "static-pie is statically linked");
    let script = folder.path().join("script");
    fs::write(&script, format!("#!{path}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    refused(soft_run().unwrap().arg(&script), 126, "static-pie is statically linked");
    let loader = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    let path = program(folder.path(), "other", "int main(void) { return 0; }", &[loader]);
    let reason = "is for another processor or C library (loader /lib/ld-musl-x86_64.so.1";
    refused(soft_run().unwrap().arg(&path), 126, reason);
}

#[test]
fn programs_with_the_rights_of_another_user_are_refused() {
    let Some(mut command) = soft_run() else { return };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can create a program of another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), "other", "int main(void) { return 0; }", &[]);
    chown(&path, Some(OTHER_USER), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    refused(command.arg(&path), 126, "gains rights when it starts (setuid");
    // Without the bit, the program runs.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(soft_run().unwrap().arg(&path).status().unwrap().success());
}

#[test]
fn a_missing_library_is_named() {
    let Some(mut command) = soft_run() else { return };
    let path = "/no/such/libibverbs.so.1";
    let reason = "the library /no/such/libibverbs.so.1 cannot be read; build it with";
    refused(command.args(["--library", path, "true"]), 125, reason);
}

#[test]
fn unknown_options_are_refused_with_the_known_ones() {
    let Some(mut command) = soft_run() else { return };
    let output = command.args(["--stat", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", text(&output));
    let printed = stderr(&output);
    assert!(printed.contains("unexpected argument '--stat'"), "{printed}");
    for option in ["--devices", "--faults", "--stats", "--no-files", "--no-namespace", "--library"]
    {
        assert!(printed.contains(option), "{printed}");
    }
    // After `--`, a word with a hyphen is a program.
    let reason = "--stat was not found in the folders of PATH";
    refused(soft_run().unwrap().args(["--", "--stat"]), 127, reason);
}

#[test]
fn wrong_faults_are_named_before_the_program_starts() {
    let Some(mut command) = soft_run() else { return };
    let reason = "`RDMA_SOFT_FAULTS` has a mistake: `noise` in `noise=3%`: the faults are ";
    refused(command.env("RDMA_SOFT_FAULTS", "noise=3%").arg("true"), 125, reason);
    let mut command = soft_run().unwrap();
    refused(command.args(["--stats", "--faults", "noise=3%", "true"]), 125, reason);
}

#[test]
fn a_missing_folder_for_the_counts_is_named() {
    let Some(mut command) = soft_run() else { return };
    let command = command.env("TMPDIR", "/no/such").args(["--stats", "true"]);
    let reason = "--stats cannot create a folder in /no/such; set TMPDIR to a folder in which this user may create \
        files: ";
    refused(command, 125, reason);
}

#[test]
fn a_limit_that_allows_no_child_is_named() {
    let installed = Installed::new();
    let Some(runner) = soft_run_in(installed.path()) else { return };
    let mut command = Command::new("sh");
    // The option has different letters in different shells.
    command.args(["-c", "ulimit -u 0 2>&- || ulimit -p 0; exec \"$@\"", "sh"]);
    without_rights(command.arg(runner.get_program()).args(["--stats", "true"]));
    let reason = "--stats cannot start a child process; raise the limit of processes (`ulimit -u`), or omit --stats: ";
    refused(&mut command, 125, reason);
}
