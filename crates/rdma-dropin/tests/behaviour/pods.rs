//! Programs in the namespaces of containers. The kernel or a container may refuse them, and the tests are then skipped.

use std::path::Path;
use std::process::Command;

use crate::library::{command, text, with_library};
use crate::two_processes::exchange;

/// Namespaces of a user without rights.
const UNSHARE: &[&str] = &["--user", "--map-root-user", "--mount", "--fork"];

/// Returns a command that runs a program in namespaces of its own.
fn inside(more: &[&str], program: &Command) -> Command {
    let mut unshare = with_library(Command::new("unshare"));
    unshare.args(UNSHARE).args(more).arg(program.get_program());
    unshare
}

/// Returns true if this machine can create these namespaces and has the program `ip`.
fn can_run(more: &[&str]) -> bool {
    let mut ip = Command::new("ip");
    ip.arg("-V");
    let tried = inside(more, &ip).arg("-V").output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: {}", tried.map_or_else(|error| error.to_string(), |it| text(&it)));
    }
    can
}

/// The containers of a pod share a network namespace.
#[test]
fn two_containers_of_a_pod_exchange_messages() {
    let Some(pingpong) = command("ibv_rc_pingpong") else { return };
    let more = ["--pid", "--mount-proc"];
    if can_run(&more) {
        let containers = [inside(&more, &pingpong), inside(&more, &pingpong)];
        exchange(containers, &["-d", "soft0", "-g", "1", "-n", "200"]);
    }
}

/// Pods are joined by a pair of network interfaces, like two hosts by a cable.
#[test]
fn two_pods_exchange_messages_over_udp() {
    let Some(pingpong) = command("ibv_rc_pingpong") else { return };
    if !can_run(&["--net"]) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pods.sh");
    let mut sh = inside(&["--net"], &Command::new("sh"));
    let output = sh.arg(script).arg(pingpong.get_program()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // 200 messages of 4096 bytes in each direction.
    let ends = text(&output).matches("1638400 bytes in").count();
    assert_eq!(ends, 2, "{}", text(&output));
}
