//! `rdmatool perftest`, with itself at the other end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Output, Stdio};
use std::thread;

use test_support::crowd::ELSEWHERE;
use test_support::features::{self, Feature};

use crate::rdmatool;

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

/// A process of `rdmatool perftest`.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str], place: &[&str]) -> Self {
        let mut program = crate::program(&["perftest"]);
        program.args(arguments).args(place);
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Returns a server, and its address.
    fn server(arguments: &[&str]) -> (Self, String) {
        let mut server = Self::start(arguments, &["--listen", "127.0.0.1:0"]);
        let mut line = String::new();
        server.output.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").map(str::to_owned);
        let address = address.unwrap_or_else(|| panic!("{line}{:?}", server.child.wait()));
        (server, address)
    }

    fn end(mut self) -> Output {
        let mut stdout = Vec::new();
        self.output.read_to_end(&mut stdout).unwrap();
        Output { stdout, ..self.child.wait_with_output().unwrap() }
    }

    /// Returns the standard output of a process that succeeds, after the address.
    fn succeed(self) -> String {
        let output = self.end();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the standard error of a process that fails.
    fn fail(self) -> String {
        failure(self.end())
    }
}

/// Returns the standard error of a program that failed.
fn failure(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("error: ") && !text.contains("panicked"), "{text}");
    text
}

/// Runs client and server, and returns their output.
fn both(program: &str, options: &[&str]) -> [String; 2] {
    let options = [&[program], options].concat();
    let (server, address) = Process::server(&options);
    let client = Process::start(&options, &["--connect", &address]);
    [client, server].map(Process::succeed)
}

fn lacks(device: &str, feature: Feature) -> bool {
    rdma::soft::install();
    features::lacks(device, feature)
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
fn unreliable_connections_and_datagrams_carry_messages() {
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

/// More messages than a byte has values, and than receives or requests are posted at a time.
#[test]
fn messages_may_outnumber_receives_and_requests() {
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

#[test]
fn impossible_options_are_refused_with_possible_ones() {
    for (options, hint) in [
        (&["read-lat", "--service", "uc"][..], "--service rc"),
        (&["atomic-bw", "--service", "ud"], "--service rc"),
        (&["write-bw", "--service", "ud"], "--service rc"),
        (&["send-lat", "--iterations", "4"], "5 to 1000000"),
        (&["send-lat", "--iterations", "1000001"], "5 to 1000000"),
        (&["send-bw", "--size", "1073741825"], "of 1 to"),
        (&["atomic-lat", "--size", "16"], "8 bytes"),
        (&["send-bw", "--service", "ud", "--iterations", "16001"], "16000"),
        (&["send-lat", "--device", "mlx5_77"], "soft0"),
        (&["send-lat", "--wait", "0"], "no process connected to 127.0.0.1"),
    ] {
        let error = Process::start(options, &["--listen", "127.0.0.1:0"]).fail();
        assert!(error.contains(hint), "{options:?}: {error}");
    }
    for (arguments, hint) in [
        (&["perftest", "send-lat"][..], "--listen"),
        (&["perftest", "send", "--listen"], "atomic-bw"),
        (&["perftest", "send-lat", "--service", "xrc", "--listen"], "rc, uc or ud"),
        (&["perftest", "send-bw", "--size", "0", "--listen"], "such as 8, 64K or 1M"),
    ] {
        let output = rdmatool(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(hint), "{arguments:?}: {error}");
    }
}

#[test]
fn an_address_without_a_listener_is_an_error_after_the_wait() {
    // No other socket gets the port on this address.
    let free = TcpListener::bind((ELSEWHERE, 0)).unwrap().local_addr().unwrap().to_string();
    let options = ["send-lat", "--wait", "0"];
    let error = Process::start(&options, &["--connect", &free]).fail();
    assert!(error.contains(&free) && error.contains("no process is listening"), "{error}");
    let error = Process::start(&options, &["--connect", "127.0.0.1"]).fail();
    assert!(error.contains("HOST:PORT"), "{error}");
}

/// Runs both ends with options of their own, and returns their errors.
fn fail(server: &[&str], client: &[&str]) -> [String; 2] {
    let (server, address) = Process::server(server);
    let client = Process::start(client, &["--connect", &address]);
    [client, server].map(Process::fail)
}

#[test]
fn ends_with_different_lengths_fail() {
    let size = |size| ["send-lat", "--iterations", "20", "--size", size];
    let [_, server] = fail(&size("64"), &size("32"));
    assert!(server.contains("a message of 32 bytes arrived, not of 64"), "{server}");
    let times = |times| ["write-bw", "--size", "64", "--iterations", times];
    let [_, server] = fail(&times("20"), &times("30"));
    assert!(server.contains("reports 30 times 64 bytes, not 20 times 64"), "{server}");
    if lacks("soft0", Feature::Ud) {
        return;
    }
    let datagram = ["send-lat", "--service", "ud", "--size", "2000", "--mtu", "1024"];
    for error in fail(&datagram, &datagram) {
        assert!(error.contains("at most the 1024 bytes"), "{error}");
    }
}

/// Sends these bytes to a server, and returns its error.
fn served(bytes: &[u8], stays: bool) -> String {
    let (server, address) = Process::server(&["write-lat", "--wait", "5"]);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    let keep = stays.then_some(stream);
    let error = server.fail();
    drop(keep);
    error
}

#[test]
fn garbage_another_version_and_silence_are_errors() {
    let garbage = served(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", true);
    assert!(garbage.contains("is not a version of perftest"), "{garbage}");
    let newer = served(b"6.28\0\0\0\0\0\0\0\0\0\0\0\0", true);
    assert!(newer.contains("perftest 6.28") && newer.contains("5.96 to 6.10"), "{newer}");
    assert!(served(b"6.06", true).contains("stalled"), "silence");
    assert!(served(b"6.06", false).contains("closed the connection"), "the end");
    let head = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x40".to_vec();
    let mtu = [&head[..], b"9\0"].concat();
    assert!(served(&mtu, true).contains("is not an MTU of perftest"), "an MTU");
    let keys = [&head[..], b"3\0", &[b'x'; 108]].concat();
    assert!(served(&keys, true).contains("is not a line of keys"), "keys");
    let none = "0000:0001:000013:26bfa2:0000a1b2:00007f0123456000:".to_owned()
        + &"00:".repeat(16)
        + "00000000:\0";
    let no_gid = [&head[..], b"3\0", none.as_bytes()].concat();
    assert!(served(&no_gid, true).contains("uses no GID"), "no GID");
}

#[test]
fn a_server_of_another_program_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap();
        stream
    });
    let text = Process::start(&["read-bw"], &["--connect", &address]).fail();
    assert!(text.contains("is not a version of perftest"), "{text}");
    drop(other.join().unwrap());
}
