//! Two network namespaces, which a pair of interfaces joins, like two hosts. Each has a program.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};

use super::process::Process;
use crate::tree;

/// The addresses of the two hosts.
pub(super) const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// The script that creates the second namespace, and runs both programs.
const SCRIPT: &str = "crates/test-support/programs/two_hosts.sh";

/// Namespaces of a user without rights. If the first process is killed, its whole PID namespace ends.
const UNSHARE: &str =
    "unshare --user --map-root-user --mount --net --pid --mount-proc --fork --kill-child";

/// Makes the name `localhost` lead to the server's address. libfabric's servers listen at this name, and report its address
/// to their clients.
const LOCALHOST: &str = "mount -t tmpfs hosts /mnt && echo ADDRESS localhost > /mnt/hosts && \
                         mount --bind /mnt/hosts /etc/hosts && ";

/// If this variable is `required`, a machine that cannot create the namespaces is an error.
const WISH: &str = "RDMA_TEST_NAMESPACES";

/// Returns true if this machine can create the namespaces.
///
/// # Errors
/// Returns an error if it cannot, and the variable `RDMA_TEST_NAMESPACES` is `required`. Also if this process cannot start
/// programs.
pub(super) fn can_run() -> Result<bool> {
    let ended = Process::start(&command(&["ip", "-V"]), &[])?.end()?;
    let is_required = std::env::var(WISH).is_ok_and(|wish| wish == "required");
    ensure!(
        ended.succeeded() || !is_required,
        "{WISH}=required, but namespaces cannot be used: {ended}"
    );
    Ok(ended.succeeded())
}

/// Returns the words that run a server and a client, whose device listens at the address of its host. `socket` is the
/// pattern of grep(1) after whose match the client starts. A server that does not end is ended after the client.
pub(super) fn words(socket: &str, lines: &[Vec<String>; 2], ends: bool) -> Vec<String> {
    let [server, client] = lines;
    let listens = |line: &[String], address| {
        let quoted: Vec<_> = line.iter().map(|word| format!("'{word}'")).collect();
        format!("RDMA_SOFT_LISTEN={address} exec {}", quoted.join(" "))
    };
    let [one, other] = ADDRESSES;
    let script = tree::root().join(SCRIPT);
    let script = script.to_string_lossy();
    let (server, client) = (listens(server, one), listens(client, other));
    let server = format!("{}{server}", LOCALHOST.replace("ADDRESS", one));
    let ended: &[_] = if ends { &[] } else { &["end"] };
    command(&[&["sh", &script, socket, one, other, &server, &client], ended].concat())
}

fn command(program: &[&str]) -> Vec<String> {
    UNSHARE.split(' ').chain(program.iter().copied()).map(str::to_owned).collect()
}

/// Returns the pattern of a socket that listens at a TCP port.
pub(super) fn tcp_socket(port: u16) -> String {
    format!(":{port:04X} 0")
}

/// Returns the pattern of a socket of rdma-cm that listens at a port, for connections or for datagrams.
pub(super) fn socket_of_service(port: u16) -> String {
    format!(" 00010000 .*@rdma-cm/1/.*/0x0000000001\\(06\\|11\\){port:04x}$")
}

/// Returns the pattern of a membership in a multicast group.
pub(super) fn membership(group: Ipv4Addr) -> String {
    let [a, b, c, d] = group.octets();
    format!("{d:02X}{c:02X}{b:02X}{a:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_starts_after_the_server_has_a_socket() {
        if !can_run().unwrap() {
            println!("skipped: this machine refuses the namespaces, or has no `ip`");
            return;
        }
        let python =
            |program: &str| ["/usr/bin/python3", "-c", program].map(str::to_owned).to_vec();
        let server = "import socket; s = socket.create_server((\"10.9.0.1\", 7471)); \
                      s.accept()[0].sendall(b\"hello\")";
        let client = "import socket; print(socket.create_connection((\"10.9.0.1\", 7471)).recv(5))";
        let lines = [python(server), python(client)];
        let ended = Process::start(&words(&tcp_socket(7471), &lines, true), &[]).unwrap().end();
        let ended = ended.unwrap();
        assert!(ended.succeeded() && ended.output.contains("hello"), "{ended}");
        // A server that does not end is ended.
        let lines = [python(&format!("{server}; s.accept()")), python(client)];
        let ended = Process::start(&words(&tcp_socket(7471), &lines, false), &[]).unwrap().end();
        let ended = ended.unwrap();
        assert!(ended.succeeded() && ended.output.contains("hello"), "{ended}");
    }
}
