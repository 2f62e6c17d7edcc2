//! The counts that `--stats` prints.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::c_programs::compile;
use crate::library::{command, folder, text};
use crate::run::{soft_run, stderr, stdout};
use crate::two_processes::exchange;

/// The number of messages that each end sends, and their length, the default of the program.
const MESSAGES: u64 = 200;
const BYTES: u64 = 4096;

#[test]
fn operations_and_bytes_of_both_ends_are_counted() {
    let Some(pingpong) = command("ibv_rc_pingpong") else { return };
    let end = || {
        let mut command = soft_run()?;
        command.arg("--stats").arg(pingpong.get_program());
        Some(command)
    };
    let (Some(server), Some(client)) = (end(), end()) else { return };
    let count = MESSAGES.to_string();
    let outputs = exchange([server, client], &["-d", "soft0", "-g", "1", "-n", &count]);
    let bytes = MESSAGES * BYTES;
    let expected = format!(
        "rdma-soft-run: {MESSAGES} requests with {bytes} bytes over RDMA, and {MESSAGES} requests of peers with \
         {bytes} bytes, in 1 process(es)\n"
    );
    assert!(outputs.iter().all(|output| output.contains(&expected)), "{outputs:?}");
}

/// `rdma-soft-run` opens the devices too, but without the faults.
#[test]
fn the_program_gets_all_faults_and_they_are_counted() {
    let Some(ibv_devinfo) = command("ibv_devinfo") else { return };
    for option in [None, Some("--faults=open_device@1=EIO")] {
        let Some(mut command) = soft_run() else { return };
        if option.is_none() {
            command.env("RDMA_SOFT_FAULTS", "open_device@1=EIO");
        }
        let command = command.args(option).arg("--stats").arg(ibv_devinfo.get_program());
        let output = command.args(["-d", "soft0"]).output().unwrap();
        let printed = stderr(&output);
        assert!(printed.contains("Failed to open device"), "{printed}");
        assert!(printed.ends_with("in 1 process(es); injected_faults is 1\n"), "{printed}");
    }
}

#[test]
fn a_program_that_uses_no_device_is_reported() {
    let Some(mut command) = soft_run() else { return };
    let output = command.args(["--stats", "true"]).output().unwrap();
    let printed = stderr(&output);
    assert!(output.status.success(), "{}", text(&output));
    assert!(printed.ends_with("no process has listed RDMA devices, so nothing went over RDMA\n"));
}

/// The system's libibverbs is our library in an image for containers. `rdma-soft-run` then lists its devices too.
#[test]
fn a_library_that_is_the_system_s_one_counts_only_the_program() {
    let Some(mut command) = soft_run() else { return };
    command.env("LD_LIBRARY_PATH", folder());
    let output = command.args(["--stats", "true"]).output().unwrap();
    let printed = stderr(&output);
    assert!(printed.ends_with("no process has listed RDMA devices, so nothing went over RDMA\n"));
}

#[test]
fn counts_of_children_are_added() {
    let Some(ibv_devices) = command("ibv_devices") else { return };
    let Some(mut command) = soft_run() else { return };
    let name = ibv_devices.get_program().to_str().unwrap();
    let script = format!("{name} && {name}");
    let output = command.args(["--stats", "sh", "-c", &script]).output().unwrap();
    let printed = stderr(&output);
    assert!(printed.contains(": 0 requests with 0 bytes over RDMA"), "{printed}");
    assert!(printed.ends_with("in 2 process(es)\n"), "{printed}");
}

#[test]
fn counts_of_a_process_that_does_not_exit_are_a_minimum() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ends");
    if soft_run().is_none() {
        return;
    }
    compile("ends.c", &program, &[]);
    for (way, status, is_final) in [
        ("return", 0, true),
        ("exit in a handler", 5, true),
        ("_exit", 6, false),
        ("kill", 137, false),
    ] {
        let mut command = soft_run().unwrap();
        let output = command.arg("--stats").arg(&program).arg(way).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{way}: {}", text(&output));
        let printed = stderr(&output);
        let count = if is_final { ": 0 requests" } else { ": at least 0 requests" };
        assert!(printed.contains(count), "{way}: {printed}");
        let reason = " (ends), which still run, were killed";
        assert_eq!(printed.contains(reason), !is_final, "{way}: {printed}");
    }
}

/// The counts are written when a queue pair is destroyed, so those of a process that calls `_exit` afterwards are known.
#[test]
fn counts_are_kept_when_a_queue_pair_is_destroyed() {
    let Some(pingpong) = command("ibv_rc_pingpong") else { return };
    let Some(mut client) = soft_run() else { return };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("early_end.so");
    compile("early_end.c", &library, &["-shared", "-fPIC"]);
    let name = pingpong.get_program().to_owned();
    let script = format!("LD_PRELOAD={}:$LD_PRELOAD exec \"$@\"", library.display());
    client.args(["--stats", "sh", "-c", &script, "sh"]).arg(&name);
    let count = MESSAGES.to_string();
    let [_, printed] = exchange([pingpong, client], &["-d", "soft0", "-g", "1", "-n", &count]);
    let expected = format!(": at least {MESSAGES} requests with {} bytes", MESSAGES * BYTES);
    assert!(printed.contains(&expected), "{printed}");
}

#[test]
fn signals_reach_the_program() {
    let Some(mut command) = soft_run() else { return };
    let script = "sleep 100 >&- 2>&- & trap 'kill $!; exit 9' TERM; echo ready; wait";
    let command = command.args(["--stats", "sh", "-c", script]).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", text(&output));
    assert!(stderr(&output).contains("nothing went over RDMA"), "{}", text(&output));
}

/// `nohup` and background jobs of shells ignore signals.
#[test]
fn the_program_ignores_the_signals_that_were_ignored_before() {
    for option in ["--stats", "--no-namespace"] {
        let Some(command) = soft_run() else { return };
        let mut ignoring = Command::new("sh");
        ignoring.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(command.get_program());
        ignoring.args([option, "sh", "-c", "kill -HUP $$; echo alive"]);
        let output = ignoring.output().unwrap();
        assert_eq!(stdout(&output), "alive\n", "{option}: {}", text(&output));
    }
}

#[test]
fn a_program_killed_by_a_signal_has_a_status_above_128() {
    let Some(mut command) = soft_run() else { return };
    let output = command.args(["--stats", "sh", "-c", "kill -KILL $$"]).output().unwrap();
    assert_eq!(output.status.code(), Some(137), "{}", text(&output));
}
