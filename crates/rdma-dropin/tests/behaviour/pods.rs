//! Programs in the namespaces of containers. The kernel or a container may refuse them, and the tests are then skipped.

use test_support::namespaces::{HOSTS, can_run, inside, tcp_socket, two_hosts};

use crate::library::{command, text, with_library};
use crate::two_processes::exchange;

/// The containers of a pod share a network namespace.
#[test]
fn two_containers_of_a_pod_exchange_messages() {
    let Some(pingpong) = command("ibv_rc_pingpong") else { return };
    let more = ["--pid", "--mount-proc"];
    if can_run(&more) {
        let containers = [(), ()].map(|()| with_library(inside(&more, &pingpong)));
        exchange(containers, &["-d", "soft0", "-g", "1", "-n", "200"]);
    }
}

/// Runs a program in two pods, and returns the output of both. Pods are joined by a pair of network interfaces, like two
/// hosts by a cable. The device of each listens at one of `addresses`, and the client connects to `to`.
fn run_in_pods(
    program: &str,
    socket: &str,
    addresses: [&str; 2],
    to: &str,
    [server, client]: [&str; 2],
) -> Option<String> {
    let program = command(program)?;
    let program = program.get_program().to_string_lossy();
    let end = |address: &str, interface: &str| {
        // An interface gets its own link-local address only seconds after it is up.
        let add = match address.starts_with("fe80:") {
            true => format!("ip address add {address}/64 dev {interface} nodad; "),
            false => String::new(),
        };
        let devices = format!("RDMA_SOFT_DEVICES=soft0,address={address}");
        // Processes may be slow to answer while other tests run.
        format!("{add}{devices} RDMA_SOFT_RETRY_TIME=60 exec {program}")
    };
    let [own, other] = addresses;
    let server = format!("{} {server}", end(own, "host-a"));
    let shell = two_hosts(socket, [&server, &format!("{} {client} {to}", end(other, "host-b"))])?;
    let output = with_library(shell).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    Some(text(&output))
}

#[test]
fn two_pods_exchange_messages_over_udp() {
    // The first address at which a device listens has index 4.
    let end = "-d soft0 -g 4 -n 200 -p 18515";
    let output = run_in_pods("ibv_rc_pingpong", &tcp_socket(18515), HOSTS, HOSTS[0], [end; 2]);
    // 200 messages of 4096 bytes in each direction.
    output.into_iter().for_each(|output| {
        assert_eq!(output.matches("1638400 bytes in").count(), 2, "{output}");
    });
}

/// Returns the pattern of the abstract name of a socket that listens at a port of a port space of rdma_cm.
fn socket_of([space, port]: [u16; 2]) -> String {
    format!(" 00010000 .*@rdma-cm/1/.*/0x00000000{space:04x}{port:04x}$")
}

/// The numbers of the port spaces for connections and for datagrams.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// A program of librdmacm: its port, the options of its server and of its client, and the text that both ends print.
type Program = (&'static str, [u16; 2], [&'static str; 2], &'static str);

const PROGRAMS: &[Program] = &[
    // The last of 20 pings.
    (
        "rping",
        [TCP, 18515],
        ["-s -C 20 -v -p 18515", "-c -C 20 -v -p 18515 -a"],
        "ping data: rdma-ping-19: ",
    ),
    (
        "ucmatose",
        [TCP, 18516],
        ["-c 20 -C 10 -S 4096 -p 18516", "-c 20 -C 10 -S 4096 -p 18516 -s"],
        "return status 0",
    ),
    ("udaddy", [UDP, 7174], ["-c 4 -C 10", "-c 4 -C 10 -s"], "return status 0"),
];

#[test]
fn two_pods_connect_by_address() {
    for &(program, port, ends, text) in PROGRAMS {
        let output = run_in_pods(program, &socket_of(port), HOSTS, HOSTS[0], ends);
        output.into_iter().for_each(|output| {
            assert_eq!(output.matches(text).count(), 2, "{program}: {output}");
        });
    }
}

/// A device has no scopes. The address at which it listens selects the interface.
#[test]
fn the_scope_of_a_link_local_address_may_be_omitted() {
    let addresses = ["fe80::9:1", "fe80::9:2"];
    for (server, to) in [
        ("-s -C 5 -v -p 18517", "fe80::9:1%host-b"),
        ("-s -C 5 -v -p 18517", "fe80::9:1"),
        ("-s -C 5 -v -p 18517 -a fe80::9:1%host-a", "fe80::9:1%host-b"),
        ("-s -C 5 -v -p 18517 -a fe80::9:1", "fe80::9:1"),
    ] {
        let ends = [server, "-c -C 5 -v -p 18517 -a"];
        let output = run_in_pods("rping", &socket_of([TCP, 18517]), addresses, to, ends);
        output.into_iter().for_each(|output| {
            assert_eq!(output.matches("ping data: rdma-ping-4: ").count(), 2, "{to}: {output}");
        });
    }
}
