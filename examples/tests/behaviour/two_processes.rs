//! Programs that meet another process.

use std::net::TcpListener;
use std::thread;

use clap::Parser;
use rdma_examples_common::Failure;
use test_support::features::Feature;
use test_support::program::{devices_by_udp, on};

use crate::common::lacks;
use crate::common::process::{Process, command, processes};
use crate::examples::{echo, pingpong, rc_pingpong};

/// Returns the address of a free port, at which no process listens.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs both sides as threads, each with its own options.
fn sides(
    run: fn(&[&str]) -> Result<String, Failure>,
    options: [&[&str]; 2],
) -> [Result<String, Failure>; 2] {
    let address = &free();
    thread::scope(|threads| {
        let [listens, connects] =
            [("--listen", options[0]), ("--connect", options[1])].map(|(role, options)| {
                threads.spawn(move || run(&[&[role, address], options].concat()))
            });
        [listens.join().unwrap(), connects.join().unwrap()]
    })
}

fn pingpong(options: &[&str]) -> Result<String, Failure> {
    let options = ["pingpong"].iter().chain(options);
    pingpong::run(&pingpong::Arguments::parse_from(options))
}

fn rc_pingpong(options: &[&str]) -> Result<String, Failure> {
    let options = ["rc_pingpong"].iter().chain(options);
    rc_pingpong::run(&rc_pingpong::Arguments::parse_from(options))
}

#[test]
fn a_message_is_answered_in_capitals_by_futures() {
    let mut listens = Process::example("async_hello", &["listen", "127.0.0.1:0"]);
    let address = listens.address();
    let connects = Process::example("async_hello", &["connect", &address]);
    assert_eq!(connects.succeed(), "HELLO");
    listens.succeed();
}

/// Runs both ends of a program that connects by an address. The processes share a device, or each has a device of its
/// own, which reaches the other by UDP. Passes the last line of the client and of the server to `check`.
fn by_address(program: &str, numbers: [u32; 2], options: &[&str], check: impl Fn([String; 2])) {
    let [own, other] = devices_by_udp(numbers);
    let address = own.split_once("address=").unwrap().1;
    for (at, [serves, asks]) in
        [("127.0.0.1", ["soft0", "soft0"]), (address, [own.as_str(), other.as_str()])]
    {
        let start = |device: &str, role: [&str; 2]| {
            Process::of(on(&mut command(program, &[&role[..], options].concat()), device))
        };
        let mut server = start(serves, ["--listen", &format!("{at}:0")]);
        let address = server.address();
        let client = start(asks, ["--connect", &address]).succeed();
        check([client, server.succeed()]);
    }
}

#[test]
fn texts_are_read_and_written_between_processes_that_know_an_address() {
    let options = ["--count", "20", "--size", "3000"];
    by_address("rping", [1, 2], &options, |[client, _]| {
        assert!(client.starts_with("20 texts of 3000 bytes"), "{client}");
    });
}

#[test]
fn messages_are_exchanged_between_processes_that_know_an_address() {
    by_address("cm_channel", [7, 8], &["--count", "10", "--size", "100"], |lines| {
        assert_eq!(lines, [(); 2].map(|()| "10 messages of 100 bytes from each end"));
    });
}

#[test]
fn a_peer_whose_messages_have_another_size_is_an_error() {
    let mut server = Process::example("cm_channel", &["--listen", "127.0.0.1:0"]);
    let client = Process::example("cm_channel", &["--size", "8", "--connect", &server.address()]);
    assert!(server.fail().contains("the peer's messages have 8 bytes"));
    client.fail();
}

#[test]
fn a_message_is_sent_back_and_forth_between_sides_that_met_by_tcp() {
    let late = "two_processes_deferred";
    let schedule = rdma::soft::Schedule::Deferred { seed: 3 };
    rdma::soft::Builder::new(late).schedule(schedule).install().unwrap();
    for run in [pingpong, rc_pingpong] {
        for device in ["soft0", "softib0", late] {
            for (size, iterations) in [("1", "0"), ("64", "30"), ("100000", "5")] {
                let options = ["--device", device, "--size", size, "--iterations", iterations];
                for outcome in sides(run, [&options, &options]) {
                    let line = outcome.unwrap();
                    let begin = format!("{device}: {iterations} times {size} bytes, ");
                    assert!(line.starts_with(&begin), "{line}");
                }
            }
        }
    }
    for device in ["soft0", "softib0"] {
        if lacks(device, Feature::Uc) {
            continue;
        }
        let options = ["--device", device, "--service", "uc", "--iterations", "20"];
        let _lines = sides(rc_pingpong, [&options, &options]).map(Result::unwrap);
    }
    let options: &[&str] = &["--events", "--iterations", "20"];
    let _lines = sides(pingpong, [options, &options[1..]]).map(Result::unwrap);
}

fn echo(options: &[&str]) -> Result<String, Failure> {
    let options = ["echo"].iter().chain(options);
    echo::run(&echo::Arguments::parse_from(options))
}

#[test]
fn messages_are_echoed_between_sides_that_met_by_tcp() {
    for device in ["soft0", "softib0"] {
        for size in ["0", "1", "5000"] {
            let options = ["--device", device, "--size", size, "--messages", "40"];
            for outcome in sides(echo, [&options, &options]) {
                let line = outcome.unwrap();
                assert!(line.starts_with(&format!("{device}: 40 messages")), "{line}");
            }
        }
    }
}

#[test]
fn both_sides_report_a_mismatch() {
    for outcome in sides(pingpong, [&["--device", "soft0"], &["--device", "softib0"]]) {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("give both processes the same `--device`"), "{error}");
    }
    // One side uses its own format, the other that of the tool.
    let address = &free();
    let outcomes = thread::scope(|threads| {
        let listens = threads.spawn(|| pingpong(&["--listen", address]));
        let connects = rc_pingpong(&["--connect", address]);
        [listens.join().unwrap(), connects].map(|outcome| outcome.unwrap_err().to_string())
    });
    assert!(outcomes[0].contains("it sent \"0000:"), "{outcomes:?}");
    assert!(outcomes[1].contains("is not a line of `ibv_rc_pingpong`"), "{outcomes:?}");
}

#[test]
fn a_gid_index_is_used_and_a_missing_one_is_refused() {
    let index = ["--gid-index", "1", "--iterations", "3"];
    let _lines = sides(rc_pingpong, [&index, &index]).map(Result::unwrap);
    let error = rc_pingpong(&["--gid-index", "200", "--listen", "127.0.0.1:0"]).unwrap_err();
    assert!(error.to_string().contains("200"), "{error}");
    let error = rc_pingpong(&[]).unwrap_err().to_string();
    assert!(error.contains("--listen"), "{error}");
    let mtu = ["rc_pingpong", "--mtu", "1500"];
    let error = rc_pingpong::Arguments::try_parse_from(mtu).unwrap_err().to_string();
    assert!(error.contains("4096"), "{error}");
}

#[test]
fn two_processes_send_back_and_forth_on_software_devices() {
    for device in ["soft0", "softib0"] {
        for (name, more) in [
            ("pingpong", &["--size", "64"][..]),
            ("pingpong", &["--size", "100000"]),
            ("pingpong", &["--size", "64", "--events"]),
            ("rc_pingpong", &["--size", "5000"]),
        ] {
            let options = [&["--device", device, "--iterations", "50"], more].concat();
            for line in processes(name, &options) {
                assert!(line.starts_with(&format!("{device}: 50 times ")), "{name}: {line}");
            }
        }
    }
}

#[test]
fn two_processes_have_a_channel_on_software_devices() {
    for device in ["soft0", "softib0"] {
        for line in processes("echo", &["--device", device, "--messages", "100"]) {
            assert!(line.starts_with(&format!("{device}: 100 messages")), "{line}");
        }
    }
}

#[test]
fn two_processes_send_datagrams_on_software_devices() {
    for device in ["soft0", "softib0"] {
        if lacks(device, Feature::Ud) {
            continue;
        }
        let [client, server] =
            processes("ud_pingpong", &["--device", device, "--iterations", "50"]);
        assert_eq!(client, format!("{device}: 50 round trips, which makes 50"));
        assert_eq!(server, format!("{device}: answered 50 times"));
    }
}

#[test]
fn the_remaining_process_reports_that_its_peer_was_killed() {
    for device in ["soft0", "softib0"] {
        // A channel waits for a message up to its limit, even if the peer has ended.
        for (name, more) in [
            ("echo", &["--messages", "100000000", "--wait", "5"][..]),
            ("pingpong", &["--iterations", "100000000"]),
        ] {
            let options = [&["--device", device], more].concat();
            let listen = [&options[..], &["--listen", "127.0.0.1:0"]].concat();
            let mut listens = Process::to_kill(name, &listen);
            let address = listens.address();
            let mut connects =
                Process::example(name, &[&options[..], &["--connect", &address]].concat());
            connects.line("connected");
            listens.0.kill().unwrap(); // SIGKILL
            assert!(!listens.end().status.success());
            let output = connects.end();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(output.stderr.starts_with(b"error: "), "{output:?}");
        }
    }
}

#[test]
fn both_processes_report_mismatched_devices() {
    let listen = ["--device", "softib0", "--listen", "127.0.0.1:0"];
    let mut listens = Process::example("pingpong", &listen);
    let address = listens.address();
    let connects = Process::example("pingpong", &["--device", "soft0", "--connect", &address]);
    for process in [connects, listens] {
        let output = process.end();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("give both processes the same `--device`"), "{text}");
    }
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn programs_of_one_process_run_on_rxe() {
    for (name, more) in [
        ("async_copy_file", &["Cargo.toml", "/tmp/async-copy"][..]),
        ("async_kv", &[]),
        ("atomics", &["--numbers", "20"]),
        ("board", &[]),
        ("channel", &[]),
        ("channel_blocking", &[]),
        ("echo", &["--messages", "50"]),
        ("kv", &[]),
        ("lend", &[]),
        ("multi_channel", &[]),
        ("multi_channel_scatter_gather", &[]),
        ("pingpong", &["--iterations", "50"]),
        ("shared_memory", &["--records", "50"]),
        ("srq", &["--messages", "50"]),
        ("ud_pingpong", &["--iterations", "50"]),
    ] {
        let process = Process::example(name, &[&["--device", "rxe0"], more].concat());
        println!("{name}: {}", process.succeed());
    }
}

const TIMES: [&str; 4] = ["--device", "rxe0", "--iterations", "50"];

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn two_processes_send_back_and_forth_on_rxe() {
    for more in [&["--size", "64"][..], &["--size", "100000", "--events"]] {
        let options = [&TIMES, more].concat();
        let listen = [&options[..], &["--listen", "127.0.0.1:0"]].concat();
        let mut listens = Process::example("pingpong", &listen);
        let address = listens.address();
        let connect = [&options[..], &["--connect", &address]].concat();
        let connects = Process::example("pingpong", &connect);
        for process in [connects, listens] {
            let line = process.succeed();
            assert!(line.starts_with("rxe0: 50 times "), "{line}");
        }
    }
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn two_processes_have_a_channel_on_rxe() {
    let options = ["--device", "rxe0", "--messages", "100"];
    let mut listens =
        Process::example("echo", &[&options[..], &["--listen", "127.0.0.1:0"]].concat());
    let address = listens.address();
    let connects = Process::example("echo", &[&options[..], &["--connect", &address]].concat());
    for process in [connects, listens] {
        let line = process.succeed();
        assert!(line.starts_with("rxe0: 100 messages"), "{line}");
    }
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn a_channel_ends_when_its_peer_is_killed_on_rxe() {
    let options = ["--device", "rxe0", "--messages", "100000000", "--wait", "10"];
    let mut listens =
        Process::to_kill("echo", &[&options[..], &["--listen", "127.0.0.1:0"]].concat());
    let address = listens.address();
    let mut connects = Process::example("echo", &[&options[..], &["--connect", &address]].concat());
    connects.line("connected");
    listens.0.kill().unwrap(); // SIGKILL
    assert!(!listens.end().status.success());
    let output = connects.end();
    assert_eq!(output.status.code(), Some(1), "it ends by itself: {output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    // Whichever is first: the device gives up, or the channel's limit expires.
    let why = ["transport retry counter exceeded", "did not complete within"];
    assert!(why.iter().any(|why| text.contains(why)), "{text}");
}

/// Starts the tool of rdma-core, which prints the number of its iterations.
fn tool(options: &[&str]) -> Process {
    let own = ["-d", "rxe0", "-g", "1", "-n", "50"];
    Process::start("ibv_rc_pingpong", &[&own, options].concat())
}

fn to_and_fro(ours: Process, c: Process) {
    let (ours, c) = (ours.succeed(), c.succeed());
    assert!(ours.starts_with("rxe0: 50 times 4096 bytes"), "{ours}");
    assert!(c.starts_with("50 iters in "), "{c}");
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn we_are_a_client_of_rdma_cores_tool_on_rxe() {
    let address = &free();
    let c = tool(&["-p", address.rsplit(':').next().unwrap()]);
    // It does not report when it listens, so ours tries again until it does.
    let ours = Process::example("rc_pingpong", &[&TIMES, &["--connect", address][..]].concat());
    to_and_fro(ours, c);
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn we_are_a_server_of_rdma_cores_tool_on_rxe() {
    let options = [&TIMES, &["--listen", "127.0.0.1:0"][..]].concat();
    let mut ours = Process::example("rc_pingpong", &options);
    let address = ours.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let c = tool(&["-p", port, host]);
    to_and_fro(ours, c);
}
