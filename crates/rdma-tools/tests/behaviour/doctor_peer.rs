use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use test_support::rig::until;

use crate::doctor::{faults, findings, of};
use crate::program;

/// A process with `doctor --listen`.
struct Listener {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Listener {
    fn start(device: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = program(&["doctor", device, "--listen", "127.0.0.1:0"]);
        prepare(&mut command);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let line = line_of(&mut output);
        let address = line.strip_prefix("listening at ").unwrap().split(' ').next().unwrap();
        Self { child, output, address: address.to_owned() }
    }

    /// Returns the next line of its output.
    fn line(&mut self) -> String {
        line_of(&mut self.output)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn line_of(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

fn towards(device: &str, address: &str) -> (i32, Vec<Value>) {
    findings(program(&["doctor", device, "--peer", address]))
}

fn probes(findings: &[Value]) -> Vec<(&str, &str)> {
    let probes = findings.iter().filter(|finding| finding["check"] == "probe");
    probes.map(|it| (it["severity"].as_str().unwrap(), it["text"].as_str().unwrap())).collect()
}

#[test]
fn two_processes_reach_each_other_by_every_pair_of_gids() {
    let mut listener = Listener::start("soft0", |_| {});
    let (status, findings) = towards("soft0", &listener.address);
    assert_eq!(status, 0, "{findings:#?}");
    let probes = probes(&findings);
    assert!(probes.len() >= 4, "{probes:#?}");
    for (severity, text) in &probes {
        assert_eq!(*severity, "ok", "{text}");
        assert!(text.starts_with("reached: ") && text.contains("MTU 4096"), "{text}");
    }
    let types = ["RoCE v1", "RoCE v2"];
    assert!(types.iter().all(|name| probes.iter().any(|(_, text)| text.contains(name))));
    assert_eq!(of(&findings, "gid-choice")["severity"], "ok");
    assert_eq!(of(&findings, "peer-mtu")["severity"], "ok");
    let count = probes.len();
    assert!(listener.line().ends_with(&format!(": reached by {count} of {count} pairs\n")));
}

#[test]
fn an_end_that_is_restricted_to_a_gid_is_reached_by_it() {
    let listener = Listener::start("soft0", |command| {
        command.env("RDMA_GID_INDEX", "1");
    });
    let (status, findings) = towards("soft0", &listener.address);
    assert_eq!(status, 0, "{findings:#?}");
    assert!(matches!(probes(&findings)[0], ("ok", text) if text.contains("fe80::")));
}

#[test]
fn infiniband_ports_reach_each_other_by_lid() {
    let listener = Listener::start("softib0", |_| {});
    let (status, findings) = towards("softib0", &listener.address);
    assert_eq!(status, 0, "{findings:#?}");
    assert!(
        matches!(probes(&findings)[..], [("ok", text)] if text.contains("LID")),
        "{findings:#?}"
    );
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn softroce_is_reached_and_counts_packets_at_both_ends() {
    let listener = Listener::start("rxe0", |_| {});
    let (status, findings) = towards("rxe0", &listener.address);
    assert_eq!(status, 0, "{findings:#?}");
    let probes = probes(&findings);
    assert!(!probes.is_empty());
    for (severity, text) in probes {
        assert!(severity == "ok" && text.matches("sent_pkts +").count() == 2, "{text}");
    }
}

#[test]
fn ports_of_different_link_layers_are_an_error() {
    let listener = Listener::start("soft0", |_| {});
    let (status, findings) = towards("softib0", &listener.address);
    assert_eq!((status, of(&findings, "probe")["severity"].as_str()), (4, Some("error")));
    let text = probes(&findings)[0].1;
    assert!(text.contains("InfiniBand") && text.contains("Ethernet"), "{text}");
}

#[test]
fn a_device_that_cannot_be_reached_is_an_error() {
    // A device of its own, which no other process reaches.
    let mut listener = Listener::start("soft0", |command| {
        command.env("RDMA_SOFT_PEERS", "none");
    });
    let (status, findings) = towards("soft0", &listener.address);
    assert_eq!(status, 4, "{findings:#?}");
    let probes = probes(&findings);
    assert!(!probes.is_empty());
    assert!(probes.iter().all(|(_, text)| text.starts_with("not reached: ")), "{probes:#?}");
    assert_eq!(probes.iter().filter(|(severity, _)| *severity == "error").count(), 1, "the chosen");
    assert!(listener.line().contains(": reached by 0 of "));
}

/// Addresses of the loopback interface that no other process of the tests uses.
fn loopback(number: u32) -> String {
    Ipv4Addr::from_bits(0x7f00_0000 | (std::process::id() & 0xffff) << 7 | number).to_string()
}

#[test]
fn two_hosts_reach_each_other_by_the_chosen_gids_over_udp() {
    let [there, here] = [loopback(1), loopback(2)];
    let alone = |command: &mut Command, address: &str| {
        command.env("RDMA_SOFT_PEERS", "none").env("RDMA_SOFT_LISTEN", address);
    };
    let listener = Listener::start("soft0", |command| alone(command, &there));
    let mut command = program(&["doctor", "soft0", "--peer", &listener.address]);
    alone(&mut command, &here);
    let (status, findings) = findings(command);
    assert_eq!(status, 0, "{findings:#?}");
    let choice = of(&findings, "gid-choice");
    let text = choice["text"].as_str().unwrap();
    assert!(text.contains(&here) && text.contains(&there) && text.contains("reaches"), "{text}");
    let probes = probes(&findings);
    let reached: Vec<_> = probes.iter().filter(|(severity, _)| *severity == "ok").collect();
    assert!(matches!(reached[..], [(_, text)] if text.contains(&here)), "{probes:#?}");
    let others = probes.iter().filter(|(severity, _)| *severity == "note");
    assert_eq!(others.count() + 1, probes.len());
}

#[test]
fn a_listener_survives_peers_that_send_anything() {
    let mut listener = Listener::start("soft0", |_| {});
    let greeting = b"rdmadoc\0\0\0\0\x01";
    let try_without_end = br#"{"gid":99,"endpoint":[1,2,3]}"#;
    let framed = [&[0, 0, 0, 29], try_without_end.as_slice()].concat();
    for bytes in [
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"rdmadoc\0\0\0\0\x09".to_vec(),
        [greeting.as_slice(), &[0xff; 64]].concat(),
        [greeting.as_slice(), &[0, 0, 0, 2], b"{}"].concat(),
        [greeting.as_slice(), &framed].concat(),
    ] {
        let mut stream = TcpStream::connect(&listener.address).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let (status, findings) = towards("soft0", &listener.address);
    assert_eq!(status, 0, "{findings:#?}");
    assert!(listener.line().contains(": reached by "));
}

#[test]
fn a_peer_that_does_not_listen_or_has_another_version_is_an_error() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = free.accept().unwrap();
        stream.write_all(b"rdmadoc\0\0\0\0\x09").unwrap();
    });
    let (status, findings) = towards("soft0", &address);
    other.join().unwrap();
    assert_eq!(status, 4);
    let peer = of(&findings, "peer");
    assert!(peer["text"].as_str().unwrap().contains("version 9"), "{peer}");
    assert!(peer["cure"].as_str().unwrap().contains("--listen"));

    // Until its `exec`, a child that another test has forked keeps the listening socket open.
    let mut findings = Vec::new();
    until("no program listens there", || {
        let (status, now) = towards("soft0", &address);
        assert_eq!(status, 4);
        findings = now;
        of(&findings, "peer")["text"].as_str().unwrap().contains(&address)
    });
    assert!(faults(&findings).contains(&("gid-choice", "warning")), "{findings:#?}");
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = program(&["doctor", "soft0", "--listen", &address]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains(&address) && error.contains("in use"), "{error}");
}
