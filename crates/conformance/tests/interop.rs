//! `cargo test -p conformance --test interop`: two processes with a software device communicate, by all checks of
//! `interop`.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use test_support::program::command;

/// A process that is killed when the test fails.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program() -> Command {
    command(env!("CARGO_BIN_EXE_interop"))
}

fn serve(device: &str) -> (Served, String) {
    let mut serve = program();
    serve.args(["serve", "--device", device, "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut served = Served(serve.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(served.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    (served, address)
}

fn drive(device: &str, address: &str, more: &[&str]) -> Output {
    let mut drive = program();
    drive.args(["drive", "--device", device, "--connect", address]).args(more);
    drive.output().unwrap()
}

/// Runs the checks. Returns the number of checks in each direction.
fn all_pass(device: &str, more: &[&str]) -> usize {
    let (mut served, address) = serve(device);
    let output = drive(device, &address, &[more, &["--format", "json"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(served.0.wait().unwrap().success());
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &rows {
        assert_eq!(row["outcome"], "Passed", "{row}");
    }
    let forth = |row: &&Value| row["from"] == format!("drive ({device})");
    let count = rows.iter().filter(forth).count();
    assert_eq!(rows.len(), 2 * count, "each check runs in both directions");
    count
}

#[test]
fn two_processes_communicate_on_software_devices() {
    for device in ["soft0", "softib0"] {
        let longest = ["--longest", "65536", "--seed", "5"];
        assert!(all_pass(device, &longest) > 30, "{device}");
    }
}

#[test]
fn two_processes_communicate_by_packets_of_each_mtu() {
    for mtu in ["256", "4096"] {
        let more = ["--mtu", mtu, "--longest", "65536", "--only", "send"];
        assert!(all_pass("soft0", &more) > 5, "{mtu}");
    }
}

#[test]
fn devices_of_different_links_are_refused() {
    let (_served, address) = serve("softib0");
    let output = drive("soft0", &address, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("different link layers"), "{text}");
}

#[test]
fn an_invalid_mtu_is_refused() {
    let (_served, address) = serve("soft0");
    let output = drive("soft0", &address, &["--mtu", "300"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("the MTU must be 256"), "{text}");
}
