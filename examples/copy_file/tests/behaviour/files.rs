//! Files that cannot be read or written, or change during the copy.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use copy_file::{Control, Settings};

use crate::bench::{Bench, noise, program, said};

/// A user who is not root.
const NOBODY: u32 = 65534;

/// The program, run by a user who only has the rights that the files grant.
fn unprivileged(bench: &Bench) -> Command {
    let copied = bench.at("program");
    // Copied by another process: this process, or a child that another test has just forked, could have the copy open
    // for writing, and then it could not be executed.
    assert!(Command::new("cp").arg(program()).arg(&copied).status().unwrap().success());
    let mut command = Command::new(copied);
    command.current_dir(bench.folder());
    let root = fs::metadata(bench.folder()).unwrap().uid() == 0;
    if root {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn set_mode(bench: &Bench, name: &str, mode: u32) {
    fs::set_permissions(bench.at(name), Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_unreadable_source_is_an_error() {
    let bench = Bench::with_source(b"secret");
    set_mode(&bench, "", 0o777);
    set_mode(&bench, "source", 0o000);
    let output = unprivileged(&bench).args(["source", "copy"]).output().unwrap();
    let said = said(&output, 1);
    assert!(said.contains("cannot read `source`: Permission denied"), "{said}");
    assert_eq!(bench.names(), ["program", "source"]);
}

#[test]
fn an_unwritable_folder_is_an_error() {
    let bench = Bench::with_source(b"x");
    let mut command = unprivileged(&bench);
    set_mode(&bench, "", 0o555);
    let output = command.args(["source", "copy"]).output().unwrap();
    set_mode(&bench, "", 0o755);
    let said = said(&output, 1);
    assert!(said.contains("cannot write `copy`: Permission denied"), "{said}");
    assert_eq!(bench.names(), ["program", "source"]);
}

#[test]
fn an_unwritable_file_in_a_writable_folder_is_not_replaced() {
    let bench = Bench::with_source(b"x");
    set_mode(&bench, "", 0o777);
    fs::write(bench.at("copy"), "old").unwrap();
    set_mode(&bench, "copy", 0o444);
    let output = unprivileged(&bench).args(["source", "copy"]).output().unwrap();
    let said = said(&output, 1);
    assert!(said.contains("cannot write `copy`: Permission denied"), "{said}");
    assert_eq!(fs::read(bench.at("copy")).unwrap(), b"old");
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let bench = Bench::with_source(&noise(3 << 20));
    fs::create_dir(bench.at("disk")).unwrap();
    // A small file system in a separate mount namespace, which does not need root on most machines.
    let script = format!(
        "mount -t tmpfs -o size=1m none disk || exit 77
         '{}' source disk/copy; status=$?; ls -A disk; exit $status",
        program().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
    match command.current_dir(bench.folder()).output() {
        Ok(output) if output.status.code() == Some(1) && !output.stderr.starts_with(b"unshare") => {
            let said = said(&output, 1);
            assert!(said.contains("cannot write `disk/copy`: No space left on device"), "{said}");
            assert_eq!(output.stdout, b"", "something is left on the disk");
        }
        other => {
            println!("skipped: a test may not mount a file system here: {other:?}");
            assert!(!other.is_ok_and(|output| output.status.success()));
        }
    }
}

#[test]
fn a_source_that_shrinks_is_an_error() {
    let error = changed_meanwhile(4096);
    assert!(error.contains("it shrank while it was read: it had 262144 bytes"), "{error}");
}

#[test]
fn a_source_that_grows_is_an_error() {
    let error = changed_meanwhile(1 << 20);
    assert!(error.contains("it grew while it was read: it had 262144 bytes"), "{error}");
}

/// Returns the error of a copy whose source changes its length after the first chunk has arrived.
fn changed_meanwhile(length: u64) -> String {
    rdma::soft::install();
    let bench = Bench::with_source(&noise(262_144));
    let source = fs::File::options().write(true).open(bench.at("source")).unwrap();
    let change = |offset: u64, _: &mut [u8]| {
        if offset == 0 {
            source.set_len(length).unwrap();
        }
    };
    let control = Control { arrival: &change, ..Control::default() };
    let error = bench.failed(bench.copy("soft0", Settings::new(4096, 2).unwrap(), control));
    assert!(error.starts_with(&format!("cannot read `{}`", bench.at("source").display())));
    error
}
