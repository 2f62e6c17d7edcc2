//! Ranks in two network namespaces, like two hosts.

use std::ffi::OsStr;
use std::process::{Command, Output};

use rdma_group::{Error, Group};
use test_support::namespaces::{HOSTS, tcp_socket, two_hosts};

use crate::ranks::child_command;

/// Runs a part on two hosts, and then a command on each. Returns `None` if this machine cannot create namespaces.
fn on_two_hosts(part: &str, then: &str) -> Option<Output> {
    let port = 7471;
    let child = child_command(part, "");
    let program = [child.get_program()].into_iter().chain(child.get_args()).map(OsStr::display);
    let program: Vec<_> = program.map(|word| format!("'{word}'")).collect();
    // The directories differ, so the processes cannot use the sockets of one host.
    let rank = |rank: usize| {
        format!(
            "export RDMA_RANK={rank} RDMA_WORLD_SIZE=2 RDMA_MASTER={}:{port} RDMA_GROUP_SECRET=swordfish
            export RDMA_SOFT_LISTEN={} RDMA_SOFT_DIRECTORY=$(mktemp -d) && {} && {then}",
            HOSTS[0], HOSTS[rank], program.join(" ")
        )
    };
    let mut shell = two_hosts(&tcp_socket(port), [&rank(0), &rank(1)])?;
    for (variable, value) in child.get_envs() {
        match value {
            Some(value) => shell.env(variable, value),
            None => shell.env_remove(variable),
        };
    }
    let output = shell.output().unwrap();
    let passed = String::from_utf8_lossy(&output.stdout).matches(" 1 passed").count();
    assert!(output.status.success() && passed == 2, "{output:?}");
    Some(output)
}

#[test]
fn ranks_in_two_network_namespaces_run_all_collectives_over_udp() {
    let Some(output) = on_two_hosts("collectives", "grep Udp: /proc/net/snmp") else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    // The second word of the second line is the number of received datagrams.
    let datagrams = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let datagrams: Vec<usize> =
        datagrams.filter_map(|counts| counts.split(' ').next()?.parse().ok()).collect();
    assert!(datagrams.len() == 2 && datagrams.iter().all(|count| *count > 100), "{text}");
}

/// Waits for a rank whose host is no longer connected to the network. The other rank does the same.
pub(crate) fn outage(group: &mut Group) {
    group.barrier().unwrap();
    let other = 1 - group.rank();
    if other == 0 {
        let command = ["link", "set", "host-b", "down"];
        assert!(Command::new("ip").args(command).status().unwrap().success());
    }
    let error = loop {
        if let Err(error) = group.barrier() {
            break error;
        }
    };
    match error {
        Error::Lost { rank, .. } => assert_eq!(rank, other),
        error => panic!("{error}"),
    }
}

/// No process ends, and no host sends anything that ends a connection.
#[test]
fn a_host_without_its_network_is_named_on_both_hosts() {
    on_two_hosts("outage", "true");
}
