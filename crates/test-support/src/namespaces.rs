//! Programs in namespaces of their own, like those of containers. The kernel or a container may refuse to create them,
//! and the tests are then skipped, unless `RDMA_TEST_NAMESPACES=required`.

use std::path::Path;
use std::process::Command;

/// Namespaces of a user without rights.
const UNSHARE: &[&str] = &["--user", "--map-root-user", "--mount", "--fork"];

/// The addresses of the two hosts of [`two_hosts`].
pub const HOSTS: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// Returns a command that runs the program of another command, without its arguments, in a new user and mount namespace.
/// `more` has the options of unshare(1) for further namespaces.
#[must_use]
pub fn inside(more: &[&str], program: &Command) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(UNSHARE).args(more).arg(program.get_program());
    unshare
}

/// If this variable is `required`, tests in namespaces fail on machines that cannot create them.
const WISH: &str = "RDMA_TEST_NAMESPACES";

/// Returns true if this machine can create these namespaces and has the program `ip`. Otherwise prints the reason.
///
/// # Panics
/// Panics with the reason if the variable `RDMA_TEST_NAMESPACES` is `required`.
#[must_use]
pub fn can_run(more: &[&str]) -> bool {
    let mut ip = Command::new("ip");
    ip.arg("-V");
    let tried = inside(more, &ip).arg("-V").output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        let reason = tried.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        let required = std::env::var(WISH).is_ok_and(|wish| wish == "required");
        assert!(!required, "{WISH}=required, but namespaces cannot be used: {reason}");
        println!("skipped: {reason}");
    }
    can
}

/// Returns the pattern for [`two_hosts`] of a program that listens at a TCP port.
#[must_use]
pub fn tcp_socket(port: u16) -> String {
    format!(":{port:04X} 0")
}

/// Returns a command that runs two shell commands in two network namespaces, which a pair of interfaces with the addresses
/// [`HOSTS`] joins like a cable. The second command starts when a line of `/proc/net/tcp`, `tcp6`, `unix` or
/// `igmp` matches the pattern of grep(1), because the first one then listens. Returns `None` if this machine cannot create the namespaces.
#[must_use]
pub fn two_hosts(socket: &str, commands: [&str; 2]) -> Option<Command> {
    if !can_run(&["--net"]) {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/two_hosts.sh");
    let mut shell = inside(&["--net"], &Command::new("sh"));
    shell.arg(script).arg(socket).args(HOSTS).args(commands);
    Some(shell)
}
