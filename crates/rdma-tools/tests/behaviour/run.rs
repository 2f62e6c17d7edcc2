use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::{env, fs};

use clap::Parser as _;
use rustix::process::{Pid, Signal, kill_process};
use test_support::program::this_program;

use crate::{printed, program, rdmatool};

#[allow(dead_code)] // `main`
#[path = "../../../../examples/examples/gradient_descent.rs"]
mod gradient_descent;

/// The variable that names the file of the plot.
const PLOT: &str = "GRADIENT_DESCENT_PLOT";

/// The ranks are processes of this test.
#[test]
fn the_ranks_of_an_example_form_a_group() {
    if let Ok(plot) = env::var(PLOT) {
        let options = ["gradient_descent", "--plot", &plot];
        let arguments = gradient_descent::Arguments::parse_from(options);
        println!("{}", gradient_descent::run(&arguments).unwrap());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("plot.svg");
    let this = this_program();
    let mut command = program(&["run", "-n", "4"]);
    command.arg(this.get_program()).args(this.get_args());
    command.args(["--exact", "run::the_ranks_of_an_example_form_a_group", "--nocapture"]);
    let output = command.env(PLOT, &plot).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    // The test harness of another rank may write within the line.
    for rank in 0..4 {
        let expected = format!("rank {rank} of 4: y = 3.00 x + -1.00");
        assert_eq!(text.matches(&expected).count(), 1, "{text}");
    }
    let plot = fs::read_to_string(plot).unwrap();
    assert!(plot.starts_with("<svg ") && plot.contains("Gradient descent of 4 ranks"), "{plot}");
}

#[test]
fn each_rank_gets_the_variables_of_a_group() {
    let script = "echo $RDMA_RANK $RDMA_WORLD_SIZE $RDMA_MASTER $RDMA_GROUP_SECRET $0 $RDMA_LOCAL_WORLD_SIZE";
    let text = printed(&["run", "-n", "3", "sh", "-c", script, "-n"]);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let [first, ..] = lines[..] else { panic!("{text}") };
    let (_, shared) = first.split_once(' ').unwrap();
    assert!(shared.starts_with("3 127.") && shared.ends_with(" -n 3"), "{shared}");
    assert_eq!(lines, [0, 1, 2].map(|rank| format!("{rank} {shared}")));
    assert_eq!(shared.split(' ').nth(2).map(str::len), Some(64), "{shared}");
}

#[test]
fn variables_that_are_set_are_kept() {
    let script = "echo $RDMA_MASTER $RDMA_GROUP_SECRET";
    let mut command = program(&["run", "-n", "1", "sh", "-c", script]);
    command.env("RDMA_MASTER", "host:7").env("RDMA_GROUP_SECRET", "swordfish");
    assert_eq!(command.output().unwrap().stdout, b"host:7 swordfish\n");
}

#[test]
fn only_rank_0_reads_the_standard_input() {
    let script =
        "[ $RDMA_RANK = 0 ] || { [ -z \"$(cat)\" ] && echo none; }; [ $RDMA_RANK != 0 ] || cat";
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
        let script = format!("[ $RDMA_RANK != 1 ] || {end}; exec sleep 3600");
        let output = rdmatool(&["run", "-n", "3", "sh", "-c", &script]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.starts_with("rank 1 failed ("), "{errors}");
    }
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = "trap '' TERM; [ $RDMA_RANK != 1 ] || exit 3; exec sleep 3600";
    let output = rdmatool(&["run", "-n", "2", "--grace", "0", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_signal_is_forwarded_to_the_ranks() {
    let script = "trap 'exit 5' TERM; echo ready; read line";
    let mut command = program(&["run", "-n", "1", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // `wait` would close it, and the script would end.
    let _input = child.stdin.take();
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
