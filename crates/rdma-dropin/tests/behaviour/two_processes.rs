//! A server and a client on one host, which find each other at a TCP port.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use wait_timeout::ChildExt;

use crate::c_programs;
use crate::library::text;

/// The time for a whole run, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);
/// The state of a listening socket in `/proc/net/tcp` (`TCP_LISTEN`).
const LISTENING: &str = "0A";

/// Runs the commands of a server and of a client with these arguments, and returns their outputs. Both succeed.
pub(crate) fn exchange([server, client]: [Command; 2], arguments: &[&str]) -> [String; 2] {
    let port = unused_port();
    let at_port = ["-p", &port.to_string()];
    let start = |mut command: Command, peer: &[&str]| {
        let arguments = [&at_port, arguments, peer].concat();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server = start(server, &[]);
    await_listener(&mut server, port);
    let client = end(start(client, &["127.0.0.1"]));
    let server = end(server);
    let outputs = [&server, &client].map(text);
    let succeed = server.status.success() && client.status.success();
    assert!(succeed, "{arguments:?}: server {}\nclient {}", outputs[0], outputs[1]);
    outputs
}

/// Returns a port that was unused a moment ago. It is below the range from which the kernel chooses ports for other
/// programs.
fn unused_port() -> u16 {
    let random = RandomState::new().build_hasher().finish();
    let first = 10_000 + (random % 20_000) as u16;
    let is_unused = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    (first..32_768).find(is_unused).unwrap()
}

/// Waits until a socket listens at the port. Connecting would take the place of the client.
fn await_listener(server: &mut Child, port: u16) {
    let begin = Instant::now();
    let place = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|own| own.ends_with(&place)) && words.nth(1) == Some(LISTENING)
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    while !tables
        .iter()
        .any(|table| fs::read_to_string(table).is_ok_and(|table| table.lines().any(listens)))
    {
        let ended = server.try_wait().unwrap();
        assert!(ended.is_none() && begin.elapsed() < LIMIT, "no server at port {port}: {ended:?}");
        sleep(Duration::from_millis(5));
    }
}

/// Returns the output of a process. Kills it if it does not end.
fn end(mut child: Child) -> Output {
    if child.wait_timeout(LIMIT).unwrap().is_none() {
        child.kill().unwrap();
    }
    child.wait_with_output().unwrap()
}

/// Needs no program of a package.
#[test]
fn connections_of_two_processes_carry_messages() {
    for service in ["rc", "uc"] {
        let Some(text) = c_programs::run("processes.c", |program| _ = program.arg(service)) else {
            return;
        };
        assert_eq!(text, "arrived: 64\narrived: 64\n", "{service}");
    }
}
