//! Runs that end early.

use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use test_support::program::is_emulated;

use super::schema::valid_report;
use super::{Listener, errors, perf, succeeds};

/// The first row takes no time; the blocks of the second row take long.
const LONG: &str = "lat send --size 8,8M --iterations 10000 --verbose --json -";

/// A client in the middle of a block.
struct Measuring {
    process: Child,
    errors: BufReader<Box<dyn Read>>,
}

impl Measuring {
    /// Starts it, and waits until a block was measured.
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors: Box<dyn Read> = Box::new(process.stderr.take().unwrap());
        let mut client = Self { process, errors: BufReader::new(errors) };
        let mut line = String::new();
        while !line.starts_with("block 1: send of 8 bytes: ") {
            line.clear();
            assert!(client.errors.read_line(&mut line).unwrap() > 0, "it ended without a block");
        }
        client
    }

    /// Waits for its end with this status, checks that the first row was printed, and returns standard error.
    fn ends_with(mut self, status: i32) -> String {
        let (mut printed, mut errors) = (String::new(), String::new());
        self.process.stdout.as_mut().unwrap().read_to_string(&mut printed).unwrap();
        self.errors.read_to_string(&mut errors).unwrap();
        assert_eq!(self.process.wait().unwrap().code(), Some(status), "{errors}");
        let report = valid_report(&printed);
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(
            (rows.len(), &rows[0]["bytes"], &rows[0]["operations"]),
            (1, &8.into(), &1000.into())
        );
        errors
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn interrupted(arguments: &str) {
    let client = Measuring::start(&mut perf(&format!("{LONG} {arguments}")));
    kill_process(Pid::from_child(&client.process), Signal::INT).unwrap();
    assert_eq!(client.ends_with(130), "");
}

#[test]
fn an_interrupted_run_of_two_processes_prints_what_was_measured() {
    if is_emulated() {
        return; // the program starts itself without the emulator
    }
    interrupted("");
}

#[test]
fn an_interrupted_run_of_channels_prints_what_was_measured() {
    interrupted("--api channel --threads");
}

#[test]
fn an_interrupted_run_of_futures_prints_what_was_measured() {
    interrupted("--api async --threads");
}

#[test]
fn a_terminated_run_leaves_no_empty_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("perf.svg");
    let mut client = Measuring::start(perf(LONG).args(["--threads", "--plot"]).arg(&file));
    kill_process(Pid::from_child(&client.process), Signal::TERM).unwrap();
    client.process.wait().unwrap();
    assert!(!file.exists());
}

#[test]
fn a_killed_server_is_reported_after_what_was_measured() {
    let mut listener = Listener::start(&mut perf(""));
    let client = Measuring::start(perf(LONG).args(["--connect", &listener.address]));
    listener.process.kill().unwrap();
    let errors = client.ends_with(1);
    assert!(errors.contains("the peer closed the connection"), "{errors}");
}

#[test]
fn a_killed_client_is_reported_by_the_server() {
    let listener = Listener::start(&mut perf(""));
    let mut client = Measuring::start(perf(LONG).args(["--connect", &listener.address]));
    client.process.kill().unwrap();
    let output = listener.finish();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("the peer closed the connection"), "{}", errors(&output));
}

#[test]
fn a_result_that_cannot_be_written_is_refused_before_it_is_measured() {
    for (file, error) in [
        ("--json /nonexistent/perf.json", "cannot write /nonexistent/perf.json"),
        ("--plot /nonexistent/perf.svg", "cannot write /nonexistent/perf.svg"),
        ("--plot perf.gif", "neither FILE.svg nor FILE.png"),
    ] {
        let output = perf(&format!("lat send --size 8 --threads {file}")).output().unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()), "{file}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(error), "{errors}");
    }
}

#[test]
fn a_run_without_a_result_leaves_no_new_file_and_changes_no_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let [new, old] = ["new.json", "old.json"].map(|name| folder.path().join(name));
    std::fs::write(&old, "kept").unwrap();
    for file in [&new, &old] {
        // Port 1 is reserved: no program listens there.
        let file = file.display();
        let run = format!("lat send --size 8 --connect 127.0.0.1:1 --json {file}");
        assert_eq!(perf(&run).output().unwrap().status.code(), Some(1));
    }
    assert!(!new.exists());
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept");
}

#[test]
fn a_full_disk_is_an_error_after_the_table() {
    let mut client = perf("lat send --size 8 --iterations 10 --threads --json /dev/full");
    let output = client.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\nsend "));
    assert!(errors(&output).contains("cannot write /dev/full"), "{}", errors(&output));
}

#[test]
fn a_shorter_result_replaces_a_longer_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("perf.json");
    std::fs::write(&path, "x".repeat(1 << 16)).unwrap();
    let mut command = perf("lat send --size 8,8 --iterations 10 --threads --json");
    succeeds(command.arg(&path));
    let report = valid_report(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "a repeated size is one row");
}

#[test]
fn an_interruption_before_the_first_block_has_its_status() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = perf("lat send --connect");
    command.arg(server.local_addr().unwrap().to_string()).stderr(Stdio::piped());
    let client = command.spawn().unwrap();
    let (mut stream, _) = server.accept().unwrap();
    // A client that has sent its greeting waits for that of the server.
    stream.read_exact(&mut [0; 19]).unwrap();
    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    let output = client.wait_with_output().unwrap();
    assert_eq!((output.status.code(), errors(&output)), (Some(130), String::new()));
}

#[test]
fn a_closed_pipe_ends_a_run_without_an_error() {
    let mut command = perf("lat send --size 8 --iterations 10 --threads");
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(client.stdout.take());
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(errors(&output), "");
}
