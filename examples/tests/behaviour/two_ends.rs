//! Programs whose ends are threads by default, with their ends as processes.

use std::net::{TcpListener, TcpStream};

use test_support::features::Feature;

use crate::common::lacks;
use crate::common::process::{Process, processes};

const DEVICES: [&str; 2] = ["soft0", "softib0"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// Returns true if the device lacks a feature that the program needs.
fn cannot_run(program: &str, device: &str) -> bool {
    let needs = match program {
        "atomics" | "shared_memory" => Feature::Atomics,
        "srq" => Feature::SharedReceiveQueues,
        "windows" => Feature::Windows,
        _ => return false,
    };
    lacks(device, needs)
}

#[test]
fn atomics_and_locks_work_between_processes() {
    for device in DEVICES {
        if cannot_run("atomics", device) {
            continue;
        }
        let options = ["--device", device, "--threads", "3", "--numbers", "50"];
        let [client, server] = processes("atomics", &options);
        assert_eq!(client, format!("{device}: 3 threads drew 50 numbers each"));
        assert_eq!(server, format!("{device}: 150 numbers, and their sum is 11175"));
    }
}

#[test]
fn records_appear_on_the_board_of_another_process() {
    for device in DEVICES {
        if cannot_run("shared_memory", device) {
            continue;
        }
        for (records, sum) in [("0", 0), ("300", 44850)] {
            let options = ["--device", device, "--records", records];
            let [client, server] = processes("shared_memory", &options);
            assert_eq!(client, format!("{device}: wrote {records} records"));
            assert_eq!(server, format!("{device}: {records} of {records} records, sum {sum}"));
        }
    }
}

#[test]
fn the_writer_learns_how_many_records_fit() {
    if cannot_run("shared_memory", "soft0") {
        return;
    }
    let mut owner = Process::example("shared_memory", &[&["--records", "7"], &LISTEN[..]].concat());
    let writer = Process::example("shared_memory", &["--connect", &owner.address()]);
    assert_eq!(writer.succeed(), "soft0: wrote 7 records");
    assert_eq!(owner.succeed(), "soft0: 7 of 7 records, sum 21");
}

#[test]
fn a_window_is_lent_to_another_process() {
    for device in DEVICES {
        if cannot_run("windows", device) {
            continue;
        }
        let [client, server] = processes("windows", &["--device", device]);
        assert!(client.starts_with("a second write: remote access error"), "{client}");
        assert_eq!(server, "lent and returned: written by the peer");
    }
}

#[test]
fn a_blocking_receive_gets_a_message_of_another_process() {
    for device in DEVICES {
        let [client, server] =
            processes("channel_blocking", &["--device", device, "--limit", "30"]);
        assert_eq!(client, "sent");
        assert!(server.starts_with("afterwards: the channel to QPN "), "{server}");
    }
}

#[test]
fn processes_share_the_receives_of_a_server() {
    for device in DEVICES {
        if cannot_run("srq", device) {
            continue;
        }
        let options = ["--device", device];
        let mut server =
            Process::example("srq", &[&options, &["--clients", "3"], &LISTEN[..]].concat());
        let address = server.address();
        // A process that ends before the others have connected does not count as a client.
        drop(TcpStream::connect(&address).unwrap());
        let client = |messages| {
            let more = ["--connect", &address, "--messages", messages];
            Process::example("srq", &[&options[..], &more].concat())
        };
        let clients = ["0", "100", "300"].map(|messages| (messages, client(messages)));
        for (messages, client) in clients {
            assert_eq!(client.succeed(), format!("{device}: sent {messages} messages"));
        }
        let (line, sum) = (server.succeed(), 100 * 101 / 2 + 300 * 301 / 2);
        let begin = format!("{device}: 400 messages, their sum is {sum}, filled ");
        assert!(line.starts_with(&begin), "{line}");
    }
}

/// Checks that it fails because of the other end, and reports that.
fn told(survivor: Process) {
    let output = survivor.end();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let why = ["the other end has gone", "the peer closed the stream early"];
    assert!(text.starts_with("error: ") && why.iter().any(|why| text.contains(why)), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// These do not end before they are killed.
const LONG: [(&str, &[&str]); 4] = [
    ("atomics", &["--numbers", "100000000"]),
    ("channel_blocking", &["--limit", "8000"]), // the client waits until the server has finished
    ("shared_memory", &["--records", "3000000"]),
    ("srq", &["--messages", "1000000000", "--clients", "1"]),
];

#[test]
fn clients_report_that_the_server_was_killed() {
    for (name, options) in LONG {
        if cannot_run(name, "soft0") {
            continue;
        }
        let mut server = Process::to_kill(name, &[options, &LISTEN].concat());
        let address = server.address();
        let mut client = Process::example(name, &[options, &["--connect", &address]].concat());
        client.line("connected");
        server.0.kill().unwrap(); // SIGKILL
        assert!(!server.end().status.success());
        told(client);
    }
}

#[test]
fn servers_report_that_the_client_was_killed() {
    for (name, options) in LONG {
        if cannot_run(name, "soft0") {
            continue;
        }
        let mut server = Process::example(name, &[options, &LISTEN].concat());
        let address = server.address();
        let mut client = Process::to_kill(name, &[options, &["--connect", &address]].concat());
        server.line("connected");
        client.0.kill().unwrap(); // SIGKILL
        assert!(!client.end().status.success());
        told(server);
    }
}

#[test]
fn all_ends_report_that_one_of_several_clients_was_killed() {
    if cannot_run("srq", "softib0") {
        return;
    }
    let options = ["--device", "softib0", "--messages", "1000000000"];
    let mut server = Process::example("srq", &[&options, &LISTEN[..]].concat());
    let address = server.address();
    let connect = [&options[..], &["--connect", &address]].concat();
    let mut killed = Process::to_kill("srq", &connect);
    let other = Process::example("srq", &connect);
    killed.line("connected");
    killed.0.kill().unwrap(); // SIGKILL
    assert!(!killed.end().status.success());
    told(server);
    told(other);
}

/// The other end dies before RDMA connects them.
#[test]
fn an_end_reports_that_its_peer_disconnected_immediately() {
    for name in ["atomics", "channel_blocking", "shared_memory", "srq", "windows"] {
        if cannot_run(name, "soft0") {
            continue;
        }
        let more: &[&str] = if name == "srq" { &["--clients", "1"] } else { &[] };
        let mut server = Process::example(name, &[&LISTEN, more].concat());
        drop(TcpStream::connect(server.address()).unwrap());
        told(server);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = Process::example(name, &["--connect", &address]);
        drop(listener.accept().unwrap());
        told(client);
    }
}

#[test]
fn both_ends_report_a_mismatch() {
    let both = |name, listens: &[&str], connects: &[&str], what: &str| {
        let mut server = Process::example(name, &[listens, &LISTEN].concat());
        let address = server.address();
        let client = Process::example(name, &[connects, &["--connect", &address]].concat());
        for process in [client, server] {
            let output = process.end();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains(what), "{text}");
        }
    };
    let device = "give both processes the same `--device`";
    let runs = |name: &str| !DEVICES.iter().any(|device| cannot_run(name, device));
    for name in ["atomics", "channel_blocking", "shared_memory", "windows"] {
        if runs(name) {
            both(name, &["--device", "softib0"], &["--device", "soft0"], device);
        }
    }
    if runs("atomics") {
        let count = "give both ends the same number of connections";
        both("atomics", &["--threads", "2"], &["--threads", "3"], count);
    }
}

#[test]
fn an_end_without_a_peer_reports_what_to_do() {
    let failed = |options: &[&str]| {
        let output = Process::example("shared_memory", options).end();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = failed(&["--connect", "here"]);
    assert!(text.contains("HOST:PORT"), "{text}");
    let text = failed(&["--listen", "127.0.0.1:0", "--wait", "1"]);
    assert!(text.contains("start the other process with `--connect`"), "{text}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = failed(&["--connect", &free, "--wait", "1"]);
    assert!(text.contains("start the other process with `--listen`"), "{text}");
    let text = failed(&["--device", "no_such_device", "--listen"]);
    assert!(text.contains("available: soft0, softib0"), "{text}");
}
