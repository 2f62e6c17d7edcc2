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
/// hosts by a cable.
fn run_in_pods(program: &str, socket: &str, [server, client]: [&str; 2]) -> Option<String> {
    let program = command(program)?;
    let program = program.get_program().to_string_lossy();
    let [own, other] = HOSTS;
    let end = |address: &str| {
        let devices = format!("RDMA_SOFT_DEVICES=soft0,address={address}");
        // Processes may be slow to answer while other tests run.
        format!("{devices} RDMA_SOFT_RETRY_TIME=60 exec {program}")
    };
    let server = format!("{} {server}", end(own));
    let shell = two_hosts(socket, [&server, &format!("{} {client} {own}", end(other))])?;
    let output = with_library(shell).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    Some(text(&output))
}

#[test]
fn two_pods_exchange_messages_over_udp() {
    // The first address at which a device listens has index 4.
    let end = "-d soft0 -g 4 -n 200 -p 18515";
    let output = run_in_pods("ibv_rc_pingpong", &tcp_socket(18515), [end; 2]);
    // 200 messages of 4096 bytes in each direction.
    output.into_iter().for_each(|output| {
        assert_eq!(output.matches("1638400 bytes in").count(), 2, "{output}");
    });
}

/// Runs a program of librdmacm in two pods. Its server listens at a port of a port space of rdma_cm.
fn run_by_address(program: &str, [space, port]: [u16; 2], ends: [&str; 2]) -> Option<String> {
    // The abstract name of a socket that listens at the port.
    let socket = format!(" 00010000 .*@rdma-cm/1/.*/0x00000000{space:04x}{port:04x}$");
    run_in_pods(program, &socket, ends)
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
        let output = run_by_address(program, port, ends);
        output.into_iter().for_each(|output| {
            assert_eq!(output.matches(text).count(), 2, "{program}: {output}");
        });
    }
}
