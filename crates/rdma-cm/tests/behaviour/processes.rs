//! Two processes that share only a host name and a port, and processes that exit between any two messages.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::{env, io, process};

use rdma_cm::{Accepting, Connection, End, Error, Listener};
use test_support::program::this_program;
use test_support::rig::until;

use crate::common::{LIMIT, Node, open};

/// The environment variable that makes a process the other end, with the stage at which it exits.
const STAGE: &str = "RDMA_TEST_CM_STAGE";
/// The environment variable with the address to which the other end connects.
const ADDRESS: &str = "RDMA_TEST_CM_ADDRESS";

/// Returns the command for the other end, which runs the same test.
fn other_end(test: &str, stage: &str) -> Command {
    let mut program = this_program();
    program.args([&format!("processes::{test}"), "--exact", "--nocapture"]);
    program.env(STAGE, stage).stdin(Stdio::piped()).stdout(Stdio::piped());
    program
}

/// Exits, without dropping anything, if the process has reached its last stage. Before that, waits for the test.
fn exit_at(last: &str, stage: &str) {
    if last == stage {
        wait_for_the_test();
        process::exit(0);
    }
}

fn wait_for_the_test() {
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Ends the wait of the other end, and waits until it has exited.
fn end(mut other: Child) {
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
}

/// Listens, and serves one client until the last stage.
fn serve(last: &str) {
    let mut node = Node::new(&open("soft0"));
    let listener = Listener::bind(&node.channel, "localhost:0").unwrap();
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
    let mut server = other_end(test, stage).spawn().unwrap();
    let lines = BufReader::new(server.stdout.as_mut().unwrap()).lines();
    let port =
        lines.map_while(Result::ok).find_map(|line| line.strip_prefix("port ")?.parse().ok());
    (server, port.unwrap())
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
        assert_eq!(connect_to_exiting(test, stage), End::PeerGone, "{stage}");
    }
    for stage in ["accepted", "established"] {
        let expected = End::Disconnected { private_data: Vec::new() };
        assert_eq!(connect_to_exiting(test, stage), expected, "{stage}");
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
    let _connection = replied.establish().unwrap();
    exit_at(last, "established");
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
    let gone = |result: Result<Connection, Error>| {
        assert!(matches!(result, Err(Error::Ended(End::PeerGone))), "{result:?}");
    };

    let (client, accepting) = start("connecting");
    end(client);
    gone(accepting.accept(b"").and_then(|accepted| accepted.wait(LIMIT)));

    let (client, accepting) = start("replied");
    let accepted = accepting.accept(b"").unwrap();
    end(client);
    gone(accepted.wait(LIMIT));

    let (client, accepting) = start("established");
    let connection = accepting.accept(b"").unwrap().wait(LIMIT).unwrap();
    end(client);
    let expected = End::Disconnected { private_data: Vec::new() };
    assert_eq!(connection.wait(LIMIT).unwrap(), expected);
}
