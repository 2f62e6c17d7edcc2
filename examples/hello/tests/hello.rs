//! The program `hello`, as two processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

fn hello(arguments: &[&str]) -> Command {
    let mut command = test_support::program::command(env!("CARGO_BIN_EXE_hello"));
    command.args(arguments);
    command
}

#[test]
fn a_message_is_answered_in_capitals() {
    for device in ["soft0", "softib0"] {
        let mut listens = hello(&["listen", "127.0.0.1:0"])
            .env("RDMA_DEVICE", device)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(listens.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap();
        let connects = hello(&["connect", address]).env("RDMA_DEVICE", device).output().unwrap();
        assert_eq!(String::from_utf8(connects.stdout).unwrap(), "HELLO\n");
        assert!(connects.status.success() && listens.wait().unwrap().success());
    }
}

#[test]
fn bad_arguments_and_a_missing_listener_are_reported() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (arguments, error) in [
        (&[][..], "usage: hello listen|connect HOST:PORT"),
        (&["connect", &free], "no process is listening on"),
        (&["connect", "no address"], "HOST:PORT"),
    ] {
        let output = hello(arguments).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && printed.contains(error), "{printed}");
    }
}
