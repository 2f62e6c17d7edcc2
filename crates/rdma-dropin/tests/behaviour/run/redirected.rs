//! The files that describe the devices, shown without a namespace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::c_programs::compile;
use crate::library::{command, text};
use crate::run::{Installed, soft_run, soft_run_in, stderr, stdout, with_files, without_rights};

const ANNOUNCED: &str =
    "describe these devices, because librdma_soft_files.so redirects their paths to ";

/// Returns the folder with the files.
fn announced_folder(output: &Output) -> String {
    let printed = stderr(output);
    let folder = printed.split_once(ANNOUNCED).and_then(|(_, rest)| rest.split_whitespace().next());
    assert!(folder.is_some(), "{}", text(output));
    folder.unwrap().to_owned()
}

/// The lines that differ.
fn differences(one: &Output, other: &Output) -> Vec<String> {
    let [one, other] = [one, other].map(|output| String::from_utf8_lossy(&output.stdout));
    assert_eq!(one.lines().count(), other.lines().count());
    let pairs = one.lines().zip(other.lines()).filter(|(one, other)| one != other);
    pairs.map(|(one, other)| format!("{one:?} is {other:?}")).collect()
}

#[test]
fn each_function_finds_the_same_files_as_in_the_namespace() {
    if soft_run().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("paths");
    compile("paths.c", &program, &[]);
    let run = |option: Option<&str>| {
        let mut command = soft_run().unwrap();
        with_files(command.args(option).arg(&program).args(["devices", "/"]))
    };
    let redirected = run(Some("--no-namespace")).unwrap();
    let lines = stdout(&redirected);
    assert!(lines.starts_with("openat 0 /sys/class/infiniband/soft0/node_type: 0 1: CA\n"));
    let Some(in_namespace) = run(None) else { return };
    let found = differences(&in_namespace, &redirected);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn other_paths_have_the_same_results_as_without_the_library() {
    if soft_run().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("paths");
    compile("paths.c", &program, &[]);
    // The program creates files in its working directory.
    let start = folder.path().join("start/here");
    let run = |mut command: Command, is_redirected: bool| {
        fs::create_dir_all(&start).unwrap();
        let output = command.args([Path::new("others"), &start]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(stderr(&output).contains(ANNOUNCED), is_redirected, "{}", text(&output));
        fs::remove_dir_all(&start).unwrap();
        output
    };
    let alone = run(Command::new(&program), false);
    let mut command = soft_run().unwrap();
    command.arg("--no-namespace").arg(&program);
    let redirected = run(command, true);
    let found = differences(&alone, &redirected);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_folder_exists_until_the_program_ends() {
    for (options, script, status) in [
        (&["--no-namespace"][..], "cat /sys/class/infiniband/soft0/node_type; exit 7", 7),
        (&["--no-namespace", "--stats"], "cat /sys/class/infiniband/soft0/node_type", 0),
        (&["--no-namespace", "--devices=soft0"], "cat /sys/class/infiniband/*/node_type", 0),
        (&["--no-namespace", "--faults=seed=1"], "cat /dev/infiniband/../infiniband/uverbs8193", 0),
        (&["--no-namespace"], "cat /sys/class/infiniband/soft0/node_type; kill -KILL $$", 137),
    ] {
        let Some(mut command) = soft_run() else { return };
        let script = format!("test -d \"$RDMA_DROPIN_FILES\" || exit 1; {script}");
        let output = command.args(options).args(["sh", "-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", text(&output));
        let expected = if script.contains("uverbs") { "" } else { "1: CA\n" };
        assert_eq!(stdout(&output), expected, "{options:?}: {}", text(&output));
        let folder = announced_folder(&output);
        assert!(!Path::new(&folder).exists(), "{folder}");
    }
}

#[test]
fn programs_that_list_and_open_the_devices_run_without_a_namespace() {
    let Some(ibv_devinfo) = command("ibv_devinfo") else { return };
    let Some(mut command) = soft_run() else { return };
    let name = ibv_devinfo.get_program().to_str().unwrap();
    let script =
        format!("cat /sys/class/infiniband/soft0/node_guid && {name} -d soft0 | grep node_guid");
    let output = command.args(["--no-namespace", "sh", "-c", &script]).output().unwrap();
    let lines = stdout(&output);
    let guids: Vec<_> = lines.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(matches!(*guids, [file, verb] if file == verb), "{}", text(&output));
}

/// Runs `rdma-soft-run` after a script that limits a new user namespace.
fn limited(limit: &str, program: &[&str]) -> Option<Output> {
    let installed = Installed::new();
    let runner = soft_run_in(installed.path())?;
    let mut limited = Command::new("unshare");
    let script = format!("{limit} \"$@\"");
    limited.args(["--user", "--map-root-user", "--mount", "sh", "-ec", &script, "sh"]);
    without_rights(limited.arg(runner.get_program()).args(program));
    let output = limited.output().unwrap();
    if text(&output).contains("unshare failed") || text(&output).contains("setpriv: ") {
        println!("skipped: {}", text(&output));
        return None;
    }
    Some(output)
}

#[test]
fn paths_are_redirected_if_the_system_refuses_namespaces() {
    // Only the owner of a user namespace may limit the namespaces in it.
    let no_namespace = "echo 0 >/proc/sys/user/max_mnt_namespaces; exec";
    // A user namespace is allowed, but no user can be mapped to it, as with AppArmor on Ubuntu 24.04.
    let no_map = "mount --rbind /proc /proc; mount -o remount,bind,ro /proc;
        exec setpriv --bounding-set -all --inh-caps -all";
    let script = "cat /sys/class/infiniband/soft0/node_type && id -u";
    for limit in [no_namespace, no_map] {
        let Some(output) = limited(limit, &["sh", "-c", script]) else { return };
        assert_eq!(stdout(&output), "1: CA\n0\n", "{}", text(&output));
        announced_folder(&output);
        let reason = "(the system refuses a user and mount namespace: ";
        assert!(stderr(&output).contains(reason), "{}", text(&output));
    }
}

#[test]
fn without_the_library_that_redirects_paths_the_reason_is_announced() {
    let installed = Installed::new();
    let Some(mut command) = soft_run_in(installed.path()) else { return };
    fs::remove_file(installed.library().join("librdma_soft_files.so")).unwrap();
    let output = command.args(["--no-namespace", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", text(&output));
    let reason = "librdma_soft_files.so does not exist; copy it there";
    assert!(stderr(&output).contains(reason), "{}", text(&output));
}
