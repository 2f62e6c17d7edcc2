//! The other end of perftest's programs, against itself.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use test_support::features::Feature;

use crate::common::lacks;
use crate::common::process::Process;
use crate::examples::perftest;

const ALL: [&str; 8] = [
    "send-lat",
    "send-bw",
    "write-lat",
    "write-bw",
    "read-lat",
    "read-bw",
    "atomic-lat",
    "atomic-bw",
];

/// Both ends as processes; the last lines of client and server.
fn both(program: &str, options: &[&str]) -> [String; 2] {
    let options = [&[program], options].concat();
    let mut server =
        Process::example("perftest", &[&options[..], &["--listen", "127.0.0.1:0"]].concat());
    let address = server.address();
    let client = Process::example("perftest", &[&options[..], &["--connect", &address]].concat());
    [client, server].map(Process::succeed)
}

fn lacks_atomics_for(device: &str, program: &str) -> bool {
    program.starts_with("atomic-") && lacks(device, Feature::Atomics)
}

fn is_latency(program: &str) -> bool {
    program.ends_with("-lat")
}

#[test]
fn each_program_runs_between_two_processes() {
    for device in ["soft0", "softib0"] {
        for program in ALL {
            if lacks_atomics_for(device, program) {
                continue;
            }
            let [client, server] = both(program, &["--device", device, "--iterations", "40"]);
            let size = match program {
                "atomic-lat" | "atomic-bw" => 8,
                _ if is_latency(program) => 2,
                _ => 65536,
            };
            let what = format!("40 times {size} bytes");
            assert!(client.starts_with(&format!("{device}: {what}, ")), "{program}: {client}");
            assert!(server.contains(&what), "{program}: {server}");
            let unit = if is_latency(program) { "usec: min " } else { " MB/s, " };
            assert!(client.contains(unit), "{program}: {client}");
        }
    }
}

#[test]
fn messages_without_acknowledgement_and_datagrams() {
    for (service, program) in [
        ("uc", "send-lat"),
        ("uc", "send-bw"),
        ("uc", "write-lat"),
        ("uc", "write-bw"),
        ("ud", "send-lat"),
        ("ud", "send-bw"),
    ] {
        let feature = if service == "uc" { Feature::Uc } else { Feature::Ud };
        if lacks("soft0", feature) {
            continue;
        }
        let options = ["--service", service, "--size", "700", "--iterations", "100"];
        let [client, _] = both(program, &options);
        assert!(
            client.starts_with("soft0: 100 times 700 bytes, "),
            "{service} {program}: {client}"
        );
    }
}

/// More messages than there are numbers in a byte, requests at a time, or receives.
#[test]
fn more_messages_than_there_is_room_for() {
    for program in ["send-bw", "write-lat", "write-bw", "read-bw", "atomic-bw"] {
        if lacks_atomics_for("soft0", program) {
            continue;
        }
        let size: &[&str] = if program == "atomic-bw" { &[] } else { &["--size", "100"] };
        let options = [&["--iterations", "600", "--mtu", "256"], size].concat();
        let [client, _] = both(program, &options);
        assert!(client.starts_with("soft0: 600 times "), "{program}: {client}");
    }
}

fn refused(options: &[&str]) -> String {
    let options = ["perftest"].iter().chain(options);
    let arguments = perftest::Arguments::parse_from(options);
    perftest::run(&arguments).unwrap_err().to_string()
}

#[test]
fn what_there_is_not_is_refused_with_what_there_is() {
    for (options, hint) in [
        (&["read-lat", "--service", "uc"][..], "--service rc"),
        (&["atomic-bw", "--service", "ud"], "--service rc"),
        (&["write-bw", "--service", "ud"], "--service rc"),
        (&["send-lat", "--iterations", "4"], "5 to 1000000"),
        (&["send-lat", "--iterations", "1000001"], "5 to 1000000"),
        (&["send-bw", "--size", "0"], "of 1 to"),
        (&["send-bw", "--size", "1073741825"], "of 1 to"),
        (&["atomic-lat", "--size", "16"], "8 bytes"),
        (&["send-bw", "--service", "ud", "--iterations", "16001"], "16000"),
        (&["send-lat"], "--listen"),
        (&["send-lat", "--gid-index", "200", "--listen", "127.0.0.1:0", "--wait", "1"], "nobody"),
    ] {
        let error = refused(options);
        assert!(error.contains(hint), "{options:?}: {error}");
    }
    let unknown = ["perftest", "send", "--listen"];
    let error = perftest::Arguments::try_parse_from(unknown).unwrap_err().to_string();
    assert!(error.contains("send-lat") && error.contains("atomic-bw"), "{error}");
}

/// Both ends as processes, with options of their own; what both say went wrong.
fn fail(server: &[&str], client: &[&str]) -> [String; 2] {
    let mut server = Process::example("perftest", &[server, &["--listen", "127.0.0.1:0"]].concat());
    let address = server.address();
    let client = Process::example("perftest", &[client, &["--connect", &address]].concat());
    [client, server].map(Process::fail)
}

#[test]
fn ends_that_were_given_other_lengths_find_out() {
    let size = |size| ["send-lat", "--iterations", "20", "--size", size];
    let [_, server] = fail(&size("64"), &size("32"));
    assert!(server.contains("a message of 32 bytes came, not of 64"), "{server}");
    let times = |times| ["write-bw", "--size", "64", "--iterations", times];
    let [_, server] = fail(&times("20"), &times("30"));
    assert!(server.contains("did 30 times 64 bytes, not 20 times 64"), "{server}");
    if lacks("soft0", Feature::Ud) {
        return;
    }
    let datagram = ["send-lat", "--service", "ud", "--size", "2000", "--mtu", "1024"];
    for error in fail(&datagram, &datagram) {
        assert!(error.contains("at most the 1024 bytes"), "{error}");
    }
}

/// Meets our server and says this; what the server says of it.
fn served(bytes: &[u8], stays: bool) -> String {
    let options = ["write-lat", "--listen", "127.0.0.1:0", "--wait", "5"];
    let mut server = Process::example("perftest", &options);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(bytes).unwrap();
    let begin = Instant::now();
    let keep = stays.then_some(stream);
    let output = server.end();
    drop(keep);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn garbage_another_version_and_silence_are_told() {
    let garbage = served(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", true);
    assert!(garbage.contains("is no version of perftest"), "{garbage}");
    let newer = served(b"6.28\0\0\0\0\0\0\0\0\0\0\0\0", true);
    assert!(newer.contains("perftest 6.28") && newer.contains("5.96 to 6.10"), "{newer}");
    assert!(served(b"6.06", true).contains("stalled"), "silence");
    assert!(served(b"6.06", false).contains("closed the connection"), "the end");
    let head = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x40".to_vec();
    let mtu = [&head[..], b"9\0"].concat();
    assert!(served(&mtu, true).contains("is no MTU of perftest"), "an MTU");
    let keys = [&head[..], b"3\0", &[b'x'; 108]].concat();
    assert!(served(&keys, true).contains("is no line of keys"), "keys");
    let none = "0000:0001:000013:26bfa2:0000a1b2:00007f0123456000:".to_owned()
        + &"00:".repeat(16)
        + "00000000:\0";
    let no_gid = [&head[..], b"3\0", none.as_bytes()].concat();
    assert!(served(&no_gid, true).contains("uses no GID"), "no GID");
}

#[test]
fn a_client_of_another_program_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap();
        stream
    });
    let client = Process::example("perftest", &["read-bw", "--connect", &address]);
    let output = client.end();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("is no version of perftest"), "{text}");
    drop(other.join().unwrap());
}
