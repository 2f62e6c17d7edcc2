//! Ranks in two network namespaces, like two hosts.

use std::ffi::OsStr;

use test_support::namespaces::{HOSTS, tcp_socket, two_hosts};

use crate::ranks::child_command;

#[test]
fn ranks_in_two_network_namespaces_run_all_collectives_over_udp() {
    let port = 7471;
    let child = child_command("collectives", "");
    let program = [child.get_program()].into_iter().chain(child.get_args()).map(OsStr::display);
    let program: Vec<_> = program.map(|word| format!("'{word}'")).collect();
    // The directories differ, so the processes cannot use the sockets of one host.
    let rank = |rank: usize| {
        format!(
            "export RDMA_RANK={rank} RDMA_WORLD_SIZE=2 RDMA_MASTER={}:{port} RDMA_GROUP_SECRET=swordfish
            export RDMA_SOFT_LISTEN={} RDMA_SOFT_DIRECTORY=$(mktemp -d) && {} && grep Udp: /proc/net/snmp",
            HOSTS[0], HOSTS[rank], program.join(" ")
        )
    };
    let Some(mut shell) = two_hosts(&tcp_socket(port), [&rank(0), &rank(1)]) else { return };
    for (variable, value) in child.get_envs() {
        match value {
            Some(value) => shell.env(variable, value),
            None => shell.env_remove(variable),
        };
    }
    let output = shell.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.matches(" 1 passed").count() == 2, "{output:?}");
    // The second word of the second line is the number of received datagrams.
    let datagrams = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let datagrams: Vec<usize> =
        datagrams.filter_map(|counts| counts.split(' ').next()?.parse().ok()).collect();
    assert!(datagrams.len() == 2 && datagrams.iter().all(|count| *count > 100), "{text}");
}
