//! The program `greeter`, in one process and in two.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use test_support::program::{command, devices_by_udp, on};

const ALL: &str = "one call: Hello Ada!\none call: Hello Grace!\nrepeated: Hello Ada!\nrepeated: Hello Ada!\n\
    all at once: Hello Ada, Grace!\nchat: Hello Ada!\nchat: Hello Grace!\n";

const WAYS: [&[&str]; 3] = [&[], &["--device", "softib0"], &["--tcp"]];

fn greeter(options: &[&[&str]]) -> Command {
    let mut program = command(env!("CARGO_BIN_EXE_greeter"));
    program.args(options.concat());
    program
}

/// Checks that clients in other processes are greeted.
fn greet_in_processes(mut serves: Command, client: impl Fn() -> Command) {
    let (_server, address) = Server::run(serves.args(["--listen", "127.0.0.1:0"]));
    for _ in 0..2 {
        let mut greets = client();
        let output = greets.args(["--connect", &address]).output().unwrap();
        assert_eq!(said(output), ALL, "{greets:?}");
    }
}

/// Returns the command of a greeter on this device.
fn greeter_on(device: &str) -> Command {
    let mut program = greeter(&[]);
    on(&mut program, device);
    program
}

fn output(options: &[&[&str]]) -> Output {
    greeter(options).output().unwrap()
}

/// Returns what the program has printed.
#[track_caller]
fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A server that is killed with the test.
struct Server(Child);

impl Server {
    /// Starts a server. Returns its address, too.
    fn start(way: &[&str], address: &str) -> (Self, String) {
        Self::run(&mut greeter(&[way, &["--listen", address]]))
    }

    fn run(command: &mut Command) -> (Self, String) {
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let (mut line, output) = (String::new(), server.stdout.take().unwrap());
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ");
        (Self(server), address.unwrap_or_else(|| panic!("{line}")).to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn both_ends_greet_in_one_process() {
    for way in WAYS {
        assert_eq!(said(output(&[way])), ALL, "{way:?}");
    }
    assert!(said(output(&[&["Bob"]])).starts_with("one call: Hello Bob!\nrepeated: Hello Bob!"));
}

#[test]
fn several_clients_in_other_processes_are_greeted() {
    for way in WAYS {
        greet_in_processes(greeter(&[way]), || greeter(&[way]));
    }
}

/// The devices of the two ends differ, as those of two hosts do.
#[test]
fn clients_in_other_processes_are_greeted_by_udp() {
    let [of_server, of_clients] = devices_by_udp([1, 2]);
    greet_in_processes(greeter_on(&of_server), || greeter_on(&of_clients));
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn clients_are_greeted_on_rxe() {
    assert_eq!(said(greeter_on("rxe0").output().unwrap()), ALL);
    greet_in_processes(greeter_on("rxe0"), || greeter_on("rxe0"));
}

#[test]
fn a_client_reports_that_no_server_listens() {
    for way in WAYS {
        let (server, address) = Server::start(way, "127.0.0.1:0");
        drop(server);
        let output = output(&[way, &["--connect", &address]]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        let why = if way == ["--tcp"] { "Connection refused" } else { &address };
        assert!(error.starts_with("error: ") && error.contains(why), "{error}");
    }
}

#[test]
fn help_shows_the_devices_and_an_unknown_device_is_an_error() {
    let help = said(output(&[&["--help"]]));
    assert!(help.contains("--tcp") && help.contains("Devices: soft0"), "{help}");
    let unknown = output(&[&["--device", "mlx5_77"]]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    let error = String::from_utf8(unknown.stderr).unwrap();
    assert!(error.contains("`mlx5_77`"), "{error}");
}
