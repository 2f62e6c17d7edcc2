//! Programs and libraries that cannot be used.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::library::{output, text};
use crate::run::{OTHER_USER, soft_run, stderr};

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
