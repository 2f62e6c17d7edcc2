use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::{printed, program, rdmatool};

#[test]
fn each_rank_gets_the_variables_of_torchrun() {
    let script =
        "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $0";
    let text = printed(&["run", "-n", "3", "--port", "7000", "sh", "-c", script, "-n"]);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let line = |rank| format!("{rank} {rank} 3 3 127.0.0.1 7000 -n");
    assert_eq!(lines, [line(0), line(1), line(2)]);
}

#[test]
fn a_free_port_is_chosen() {
    let text = printed(&["run", "-n", "1", "sh", "-c", "echo $MASTER_PORT"]);
    let port: u16 = text.trim().parse().unwrap();
    assert!(port > 1023, "{port}");
}

#[test]
fn only_rank_0_reads_the_standard_input() {
    let script = "[ $RANK = 0 ] || { [ -z \"$(cat)\" ] && echo none; }; [ $RANK != 0 ] || cat";
    let mut command = program(&["run", "--ranks", "2", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"some\n").unwrap();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["none", "some"]);
}

/// The other ranks would run for an hour.
#[test]
fn the_other_ranks_end_when_one_fails() {
    for (end, status) in [("exit 3", 3), ("kill -9 $$", 137)] {
        let script = format!("[ $RANK != 1 ] || {end}; exec sleep 3600");
        let output = rdmatool(&["run", "-n", "3", "sh", "-c", &script]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.starts_with("rank 1 failed ("), "{errors}");
    }
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = "trap '' TERM; [ $RANK != 1 ] || exit 3; exec sleep 3600";
    let output = rdmatool(&["run", "-n", "2", "--grace", "0", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_signal_is_forwarded_to_the_ranks() {
    let script = "trap 'exit 5' TERM; echo ready; read line";
    let mut command = program(&["run", "-n", "1", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_program_that_cannot_start_is_named() {
    let output = rdmatool(&["run", "-n", "2", "no-such-program"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(127), "{errors}");
    assert!(errors.contains("no-such-program was not found; check its name"), "{errors}");
    let output = rdmatool(&["run", "-n", "2", "/etc/passwd"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("rank 0, /etc/passwd, cannot be started: Permission"), "{errors}");
    assert_eq!(output.status.code(), Some(1), "{errors}");
}

#[test]
fn the_number_of_ranks_is_checked() {
    for arguments in [&["run", "true"][..], &["run", "-n", "0", "true"], &["run", "-n", "2"]] {
        assert_eq!(rdmatool(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
