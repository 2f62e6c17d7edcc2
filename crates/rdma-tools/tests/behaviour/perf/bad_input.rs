//! Invalid arguments, and peers that are other programs.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use serde_json::{Value, json};

use super::{Listener, errors, perf, succeeds};

/// Runs a command that fails with this status and a message with these parts.
fn fails(command: &mut Command, status: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {error}");
    assert!(output.stdout.is_empty(), "{command:?}");
    for part in parts {
        assert!(error.contains(part), "{command:?}: {part:?} is not in {error}");
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let usage: [(&str, &[&str]); 11] = [
        ("", &["<MEASURE>", "<OPERATION>"]),
        ("lat fly", &["'fly'", "write, read, send, atomic"]),
        ("lat send --size 0", &["'0'", "1 to 4294967295 bytes"]),
        ("lat send --size 8,4G", &["'4G'"]),
        ("bw send --depth 0", &["'0'"]),
        ("bw send --queue-pairs 5000", &["'5000'"]),
        ("bw send --duration 0", &["'0'", "seconds above 0"]),
        ("bw send --iterations 5 --duration 1", &["cannot be used with"]),
        ("bw send --listen 127.0.0.1:0", &["cannot be used with"]),
        ("bw send --once", &["cannot be used with"]),
        ("--listen 127.0.0.1:0 --size 8", &["cannot be used with"]),
    ];
    for (arguments, parts) in usage {
        fails(&mut perf(arguments), 2, parts);
    }
    let misfits: [(&str, &[&str]); 11] = [
        ("lat send --device mlx5_77", &["mlx5_77", "soft0"]),
        ("lat send --depth 2", &["leave out `--queue-pairs` and `--depth`"]),
        ("lat atomic --size 16", &["8 bytes", "`--size`"]),
        ("lat send --wait memory", &["`lat write`"]),
        ("lat write --wait memory --api channel", &["`--api qp`"]),
        ("bw write --inline 8 --api async", &["`--api qp`"]),
        ("bw read --inline 8", &["`--inline`"]),
        ("bw write --depth 999999999", &["999999999", "the limit of soft0"]),
        ("bw write --size 4294967295", &["4294967295", "soft0"]),
        ("bw write --inline 1M --threads", &["inline"]),
        // The error comes before the measurement, whose table would be on standard output.
        ("lat send --plot picture.gif", &["picture.gif", "FILE.svg"]),
    ];
    for (arguments, parts) in misfits {
        fails(&mut perf(arguments), 1, parts);
    }
}

#[test]
fn more_memory_than_the_process_may_have_is_an_error() {
    for memory in ["", "--foreign-memory"] {
        let mut shell = Command::new("sh");
        let program = perf(&format!("bw write --size 256M --depth 1 --threads {memory}"));
        shell.args(["-c", "ulimit -v 600000; exec \"$@\"", "sh"]);
        shell.arg(program.get_program()).args(program.get_args());
        fails(&mut shell, 1, &["cannot register 268435456 bytes"]);
    }
}

#[test]
fn addresses_that_cannot_be_used_are_errors() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    fails(perf("").args(["--listen", &address]), 1, &[&address, "in use", "port 0"]);
    // No program listens there, and no other process gets the port.
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let bound = socket_with(family, SocketType::STREAM, flags, None).unwrap();
    bind(&bound, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(getsockname(&bound).unwrap()).unwrap().to_string();
    fails(perf("lat send").args(["--connect", &address]), 1, &[&address, "--listen"]);
    fails(&mut perf("lat send --connect nonsense"), 1, &["cannot connect to nonsense"]);
}

/// The greeting of the program.
const GREETING: &[u8] = b"rdmatool perf 00001";

/// The bytes of peers that are other programs, and the error.
const WRONG: [(&[u8], &str); 5] = [
    (b"rdmatool perf 00099", "the peer has version 00099"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not `rdmatool perf`: it sent \"HTTP/1.1 400"),
    (b"rdmatool perf 00001\xff\xff\xff\xff", "4294967295 bytes"),
    (b"rdmatool perf 00001\0\0\0\x02{}", "does not know"),
    (b"rdmatool", "closed the connection"),
];

#[test]
fn a_server_that_is_another_program_is_an_error() {
    for (bytes, error) in WRONG {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let answer = thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.read_exact(&mut [0; GREETING.len()]).unwrap();
            stream.write_all(bytes).unwrap();
            let _ = stream.shutdown(Shutdown::Write); // the program may have closed it already
            let _ = stream.read_to_end(&mut Vec::new());
        });
        fails(perf("lat send").args(["--connect", &address]), 1, &[error]);
        answer.join().unwrap();
    }
}

#[test]
fn a_client_that_is_another_program_is_an_error() {
    for (bytes, error) in WRONG {
        let listener = Listener::start(&mut perf(""));
        let mut stream = TcpStream::connect(&listener.address).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(Shutdown::Write); // the program may have closed it already
        let output = listener.finish();
        assert_eq!(output.status.code(), Some(1));
        assert!(errors(&output).contains(error), "{error:?} is not in {}", errors(&output));
    }
}

/// Returns the settings of a client, with these values in place of the usual ones.
fn prepare(others: Value) -> Vec<u8> {
    let mut settings = json!({
        "measure": "bw", "operation": "send", "api": "qp", "wait": "poll", "sizes": [8], "queue_pairs": 1, "depth": 1,
        "inline": 0, "foreign_memory": false,
    });
    for (name, value) in others.as_object().unwrap() {
        settings[name] = value.clone();
    }
    let message = json!({ "Prepare": settings }).to_string();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [GREETING, &length, message.as_bytes()].concat()
}

/// Sends these bytes, and returns what arrives until the server closes the connection.
fn answer(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn settings_that_do_not_fit_are_refused_by_the_server_too() {
    let listener = Listener::start(&mut perf(""));
    let answer = answer(&listener.address, &prepare(json!({ "sizes": [0] })));
    assert!(answer.contains(r#"{"Failed":"a message has at least one byte"}"#), "{answer}");
    let output = listener.finish();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("at least one byte"));
}

#[test]
fn a_listener_refuses_absurd_settings_and_serves_the_next_client() {
    let mut listener = Listener::start_many(&mut perf(""));
    for (settings, error) in [
        (json!({ "operation": "read", "sizes": vec![1_u32 << 31; 1000] }), "bytes of memory"),
        (json!({ "operation": "read", "sizes": vec![8; 100_000] }), "100000 lengths"),
        (
            json!({ "api": "async", "queue_pairs": 4096, "depth": 1000, "sizes": [1 << 20] }),
            "memory",
        ),
        (
            json!({ "api": "channel", "queue_pairs": u32::MAX, "depth": 1 }),
            "4294967295 queue pairs",
        ),
        (json!({ "measure": "\u{1b}[2J" }), "unknown variant"),
    ] {
        let answer = answer(&listener.address, &prepare(settings));
        assert!(answer.contains("Failed") && answer.contains(error), "{answer}");
    }
    // A reader such as `head -1` has read only the address.
    listener.lines = None;
    let address = listener.address.clone();
    succeeds(perf("lat send --size 8 --iterations 10").args(["--connect", &address]));
    listener.process.kill().unwrap();
    let errors = errors(&listener.finish());
    assert!(errors.contains("unknown variant `?[2J`") && !errors.contains('\u{1b}'), "{errors}");
}
