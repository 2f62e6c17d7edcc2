//! Programs in the namespaces of containers. The kernel or a container may refuse them, and the tests are then skipped.

use test_support::namespaces::{HOSTS, can_run, inside, two_hosts};

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

/// Pods are joined by a pair of network interfaces, like two hosts by a cable.
#[test]
fn two_pods_exchange_messages_over_udp() {
    let Some(pingpong) = command("ibv_rc_pingpong") else { return };
    let port = 18515;
    // The first address at which a device listens has index 4.
    let program = pingpong.get_program().to_string_lossy();
    let end = |address: &str| {
        format!(
            "RDMA_SOFT_DEVICES=soft0,address={address} exec {program} -d soft0 -g 4 -n 200 -p {port}"
        )
    };
    let [server, client] = HOSTS.map(end);
    let commands = [&*server, &format!("{client} {}", HOSTS[0])];
    let Some(shell) = two_hosts(port, commands) else { return };
    let output = with_library(shell).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // 200 messages of 4096 bytes in each direction.
    let ends = text(&output).matches("1638400 bytes in").count();
    assert_eq!(ends, 2, "{}", text(&output));
}
