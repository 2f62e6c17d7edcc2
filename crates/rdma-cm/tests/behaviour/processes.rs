//! Two processes that share only a host name and a port, and processes that exit between any two messages.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, io, process, thread};

use rdma_cm::{Accepting, Connection, End, Error, Listener, Phase, Reason};
use test_support::program::this_program;
use test_support::rig::until;

use crate::common::{self, LIMIT, Node, disconnected, is_iwarp, is_over_kernel, open, vanished};
use crate::other_hosts::Host;

/// The environment variable that makes a process the other end, with the stage at which it exits.
pub(crate) const STAGE: &str = "RDMA_TEST_CM_STAGE";
/// The environment variable with the address to which the other end connects.
const ADDRESS: &str = "RDMA_TEST_CM_ADDRESS";
/// The environment variable with the address at which the other end's device listens, like that of another host.
pub(crate) const LISTEN: &str = "RDMA_SOFT_LISTEN";
/// A limit beyond the protocol's limit of 70 s.
const BEYOND: Duration = Duration::from_secs(300);

/// Returns the command for the other end, which runs the same test of this module.
fn other_end(test: &str, stage: &str) -> Command {
    process_at(&format!("processes::{test}"), stage)
}

/// Returns the command for another process, which runs a test until a stage.
pub(crate) fn process_at(test: &str, stage: &str) -> Command {
    let mut program = this_program();
    program.args([test, "--exact", "--nocapture", "--include-ignored"]);
    program.env(STAGE, stage).stdin(Stdio::piped()).stdout(Stdio::piped());
    program
}

/// Exits, without dropping anything, if the process has reached its last stage. Before that, waits for the test.
fn exit_at(last: &str, stage: &str) {
    if last == stage {
        println!("\nreached {stage}");
        wait_for_the_test();
        process::exit(0);
    }
}

pub(crate) fn wait_for_the_test() {
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Ends the wait of the other end, and waits until it has exited.
pub(crate) fn end(mut other: Child) {
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
}

/// Listens, and serves one client until the last stage.
pub(crate) fn serve(last: &str) {
    let mut node = Node::new(&open("soft0"));
    let host = env::var(LISTEN).unwrap_or_else(|_| "localhost".to_owned());
    let listener = Listener::bind(&node.channel, format!("{host}:0")).unwrap();
    println!("\nport {}", listener.local_address().port());
    exit_at(last, "listening");
    let request = listener.incoming(LIMIT).unwrap();
    exit_at(last, "requested");
    let accepting = request.prepare(node.queue_pair()).unwrap();
    exit_at(last, "prepared");
    node.post_receive(accepting.queue_pair());
    let accepted = accepting.accept(b"").unwrap();
    exit_at(last, "accepted");
    let connection = accepted.wait(LIMIT).unwrap();
    exit_at(last, "established");
    let message = node.received(4);
    node.send(connection.queue_pair(), &message);
    assert!(matches!(connection.wait(LIMIT).unwrap(), End::Disconnected { .. }));
}

/// Starts a process that serves, and returns it with its port.
fn start_server(test: &str, stage: &str) -> (Child, u16) {
    started(&mut other_end(test, stage))
}

pub(crate) fn started(server: &mut Command) -> (Child, u16) {
    let mut server = server.spawn().unwrap();
    let port = read_line(&mut server, "port ");
    (server, port.parse().unwrap())
}

/// Waits until the other end has printed a line that begins with `prefix`, and returns the rest of the line.
pub(crate) fn read_line(other: &mut Child, prefix: &str) -> String {
    // After each line that is read, the other end prints no further one until this end continues. The buffer is empty.
    let mut lines = BufReader::new(other.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
    lines.find_map(|line| Some(line.strip_prefix(prefix)?.to_owned())).unwrap()
}

#[test]
fn a_client_that_knows_a_host_and_a_port_talks_to_a_server() {
    if let Ok(stage) = env::var(STAGE) {
        return serve(&stage);
    }
    let (server, port) =
        start_server("a_client_that_knows_a_host_and_a_port_talks_to_a_server", "");
    let mut client = Node::new(&open("soft0"));
    let resolved = client.channel.resolve(format!("localhost:{port}")).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    let replied = connecting.wait(LIMIT).unwrap();
    client.post_receive(replied.queue_pair());
    let connection = replied.establish().unwrap();
    client.send(connection.queue_pair(), b"ping");
    assert_eq!(client.received(4), b"ping");
    connection.disconnect(b"").unwrap().wait(LIMIT).unwrap();
    end(server);
    // Meanwhile, another test may listen at the port.
    until("the port is free", || Listener::bind(&client.channel, ("localhost", port)).is_ok());
}

/// Checks the end of a connection whose peer exits before it is established. The kernel may reject for the process, or
/// not report its end. A request that arrives after the exit finds no listener.
fn check_gone(end: &End, stage: &str) {
    let of_kernel = [Reason::CONSUMER_DEFINED, Reason::INVALID_SERVICE_ID];
    let is_gone = match end {
        End::PeerGone => true,
        End::Rejected { reason, .. } => is_over_kernel() && of_kernel.contains(reason),
        _ => false,
    };
    assert!(is_gone, "{stage}: {end}");
}

/// Connects to a server that exits at a stage, and returns the reason that the connection ended.
fn connect_to_exiting(test: &str, stage: &str) -> End {
    let (server, port) = start_server(test, stage);
    let client = Node::new(&open("soft0"));
    let resolved = client.channel.resolve(("localhost", port)).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    if !["accepted", "established"].contains(&stage) {
        end(server);
        let Err(Error::Ended(reason)) = connecting.wait(LIMIT) else { panic!("{stage}") };
        return reason;
    }
    let connection = connecting.wait(LIMIT).unwrap().establish().unwrap();
    end(server);
    connection.wait(LIMIT).unwrap()
}

#[test]
fn a_server_that_exits_ends_its_connection() {
    if let Ok(stage) = env::var(STAGE) {
        return serve(&stage);
    }
    let test = "a_server_that_exits_ends_its_connection";
    for stage in ["listening", "requested", "prepared"] {
        check_gone(&connect_to_exiting(test, stage), stage);
    }
    for stage in ["accepted", "established"] {
        assert_eq!(connect_to_exiting(test, stage), vanished(), "{stage}");
    }
}

/// Connects until the last stage.
fn connect(last: &str, address: &str) {
    let client = Node::new(&open("soft0"));
    let resolved = client.channel.resolve(address).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    exit_at(last, "connecting");
    let replied = connecting.wait(LIMIT).unwrap();
    exit_at(last, "replied");
    let connection = replied.establish().unwrap();
    exit_at(last, "established");
    let _disconnecting = connection.disconnect(b"").unwrap();
    exit_at(last, "disconnecting");
}

#[test]
fn a_client_that_exits_ends_its_connection() {
    if let Ok(stage) = env::var(STAGE) {
        return connect(&stage, &env::var(ADDRESS).unwrap());
    }
    let server = Node::new(&open("soft0"));
    let listener = server.listen();
    let start = |stage: &str| -> (Child, Accepting) {
        let mut client = other_end("a_client_that_exits_ends_its_connection", stage);
        let client = client.env(ADDRESS, listener.local_address().to_string()).spawn().unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        (client, request.prepare(server.queue_pair()).unwrap())
    };
    let ended = |result: Result<Connection, Error>| match result {
        Err(Error::Ended(end)) => end,
        other => panic!("{other:?}"),
    };

    let (client, accepting) = start("connecting");
    end(client);
    let result = accepting.accept(b"").and_then(|accepted| accepted.wait(LIMIT));
    check_gone(&ended(result), "connecting");

    let (client, accepting) = start("replied");
    let accepted = accepting.accept(b"").unwrap();
    end(client);
    if is_iwarp() {
        // The connection was established by its answer.
        assert_eq!(accepted.wait(LIMIT).unwrap().wait(LIMIT).unwrap(), vanished());
    } else {
        check_gone(&ended(accepted.wait(LIMIT)), "replied");
    }

    let (client, accepting) = start("established");
    let connection = accepting.accept(b"").unwrap().wait(LIMIT).unwrap();
    end(client);
    assert_eq!(connection.wait(LIMIT).unwrap(), vanished());

    let (client, accepting) = start("disconnecting");
    let connection = accepting.accept(b"").unwrap().wait(LIMIT).unwrap();
    assert_eq!(connection.wait(LIMIT).unwrap(), disconnected(b"", 220));
    end(client);
}

/// Returns an address of the loopback interface for the device of another process. The devices of [`Host`] have lower ones.
pub(crate) fn address_of_other(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x7f00_0000 | (process::id() & 0xffff) << 7 | (120 + number))
}

/// Ends a process that cannot notify its peer.
fn kill(mut other: Child) {
    other.kill().unwrap();
    other.wait().unwrap();
}

/// A server on another host is killed before it answers.
fn a_client_waits_for_a_killed_server(test: &str) {
    let ip = address_of_other(0);
    let (server, port) = started(other_end(test, "requested").env(LISTEN, ip.to_string()));
    let client = Host::new().node();
    let resolved = client.channel.resolve((ip, port)).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    kill(server);
    let Err(Error::Ended(end)) = connecting.wait(BEYOND) else { panic!() };
    assert_eq!(end, End::Unanswered { phase: Phase::Connect });
}

/// A client on another host is killed after its request was accepted.
fn a_server_waits_for_a_killed_client(test: &str) {
    let (host, ip) = (Host::new(), address_of_other(1));
    let server = host.node();
    let listener = host.listen(&server.channel);
    let mut client = other_end(test, "replied");
    client.env(LISTEN, ip.to_string()).env(ADDRESS, listener.local_address().to_string());
    let client = client.spawn().unwrap();
    let accepting = listener.incoming(LIMIT).unwrap().prepare(server.queue_pair()).unwrap();
    let accepted = accepting.accept(b"").unwrap();
    kill(client);
    let Err(Error::Ended(end)) = accepted.wait(BEYOND) else { panic!() };
    assert_eq!(end, End::Unanswered { phase: Phase::Accept });
}

/// A server on another host is killed after the connection was established.
fn requests_to_a_killed_server_fail(test: &str) {
    let ip = address_of_other(2);
    let (server, port) = started(other_end(test, "established").env(LISTEN, ip.to_string()));
    let mut client = Host::new().node();
    let resolved = client.channel.resolve((ip, port)).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    let connection = connecting.wait(LIMIT).unwrap().establish().unwrap();
    kill(server);
    assert!(client.try_send(connection.queue_pair(), b"ping").is_err());
    let ended = connection.disconnect(b"").unwrap().wait(BEYOND).unwrap();
    assert_eq!(*ended.end(), End::Disconnected { private_data: Vec::new() });
}

/// A server on another host is killed after it has accepted. Its client does not notice this while it establishes the
/// connection.
fn a_client_establishes_a_connection_to_a_killed_server(test: &str) {
    let ip = address_of_other(3);
    let (server, port) = started(other_end(test, "accepted").env(LISTEN, ip.to_string()));
    let mut client = Host::new().node();
    let resolved = client.channel.resolve((ip, port)).unwrap();
    let replied = resolved.connect(client.queue_pair(), b"").unwrap().wait(LIMIT).unwrap();
    kill(server);
    let connection = replied.establish().unwrap();
    assert!(client.try_send(connection.queue_pair(), b"ping").is_err());
    let ended = connection.disconnect(b"").unwrap().wait(BEYOND).unwrap();
    assert_eq!(*ended.end(), End::Disconnected { private_data: Vec::new() });
}

/// A server on another host is killed before it answers the message that disconnects.
fn a_client_disconnects_from_a_killed_server(test: &str) {
    let ip = address_of_other(4);
    let (mut server, port) = started(other_end(test, "established").env(LISTEN, ip.to_string()));
    let client = Host::new().node();
    let resolved = client.channel.resolve((ip, port)).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    let connection = connecting.wait(LIMIT).unwrap().establish().unwrap();
    // From then on, it processes no messages.
    assert_eq!(read_line(&mut server, "reached "), "established");
    let disconnecting = connection.disconnect(b"").unwrap();
    kill(server);
    let ended = disconnecting.wait(BEYOND).unwrap();
    assert_eq!(*ended.end(), End::Disconnected { private_data: Vec::new() });
}

/// A client on another host is killed after it has disconnected. The message has arrived.
fn a_server_notices_the_end_of_a_killed_client(test: &str) {
    let (host, ip) = (Host::new(), address_of_other(5));
    let server = host.node();
    let listener = host.listen(&server.channel);
    let mut client = other_end(test, "disconnecting");
    client.env(LISTEN, ip.to_string()).env(ADDRESS, listener.local_address().to_string());
    let client = client.spawn().unwrap();
    let accepting = listener.incoming(LIMIT).unwrap().prepare(server.queue_pair()).unwrap();
    let connection = accepting.accept(b"").unwrap().wait(LIMIT).unwrap();
    assert_eq!(connection.wait(LIMIT).unwrap(), disconnected(b"", 220));
    kill(client);
    // The next client is served.
    let next = Host::new().node();
    drop(common::connect(&next, &server, &listener));
}

#[test]
#[ignore = "it waits for the protocol's limits of 70 s"]
fn a_killed_process_on_another_host_is_noticed() {
    if let Ok(stage) = env::var(STAGE) {
        return match env::var(ADDRESS) {
            Ok(address) => connect(&stage, &address),
            Err(_) => serve(&stage),
        };
    }
    let test = "a_killed_process_on_another_host_is_noticed";
    thread::scope(|scope| {
        for end in [
            a_client_waits_for_a_killed_server,
            a_server_waits_for_a_killed_client,
            requests_to_a_killed_server_fail,
            a_client_establishes_a_connection_to_a_killed_server,
            a_client_disconnects_from_a_killed_server,
            a_server_notices_the_end_of_a_killed_client,
        ] {
            scope.spawn(move || end(test));
        }
    });
}
