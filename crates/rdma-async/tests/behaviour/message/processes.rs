//! A peer in another process that is killed while long messages are on their way, or exits after it has finished.

use std::env;
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use rdma_async::Endpoint;
use rdma_async::message::{Messages, losses};
use test_support::program::{in_own_process, this_program};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use super::offers::{lends, received, returned};
use super::rig::{endpoint, message};
use crate::common::{HANG, run_in_one_thread};

/// The environment variable that makes a process the peer, with the address to connect to.
const ADDRESS: &str = "RDMA_TEST_MESSAGES_SERVER";
/// The environment variable with the role of the peer: it sends, receives, or finishes.
const ROLE: &str = "RDMA_TEST_MESSAGES_ROLE";
const LENGTH: usize = 300_000;
const ROUNDS: usize = 6;

#[test]
fn a_killed_process_ends_what_waits_for_it() {
    run_in_one_thread(|| async {
        for round in 0..ROUNDS {
            for role in ["sends", "receives"] {
                timeout(HANG, kill(role, round)).await.unwrap();
            }
        }
    });
}

#[test]
fn an_end_finishes_after_its_peer_has_finished_and_exited() {
    let name = "message::processes::an_end_finishes_after_its_peer_has_finished_and_exited";
    in_own_process(name, || run_in_one_thread(serve_once));
}

async fn serve_once() {
    let endpoint = endpoint("soft0");
    let (mut peer, server) = start(&endpoint, "finishes").await;
    server.send(&message(LENGTH)).await.unwrap();
    received(&server, LENGTH).await;
    assert!(server.receive().await.unwrap().is_none());
    assert!(spawn_blocking(move || peer.wait().unwrap()).await.unwrap().success());
    server.finish().await.unwrap();
    assert_eq!(losses(), 0);
}

/// Is the peer of a test above, which starts this process.
#[test]
#[ignore = "is the peer of other tests"]
fn peer() {
    let address = env::var(ADDRESS).expect("the address of the server").parse().unwrap();
    match &*env::var(ROLE).unwrap() {
        "finishes" => run_in_one_thread(|| finish(address)),
        role => run_in_one_thread(|| be_killed(role == "sends", address)),
    }
}

/// Starts a peer, and accepts its connection.
async fn start(endpoint: &Endpoint, role: &str) -> (Child, Messages) {
    let listener = endpoint.listen_for_messages("127.0.0.1:0", lends()).await.unwrap();
    let mut peer = this_program();
    peer.args(["message::processes::peer", "--exact", "--ignored", "--nocapture"]);
    peer.env(ADDRESS, listener.local_addr().to_string()).env(ROLE, role);
    let peer = peer.stdout(Stdio::null()).spawn().unwrap();
    (peer, listener.accept().await.unwrap())
}

/// Kills the peer after `round` messages. All operations end with an error, and all memory is returned.
async fn kill(role: &str, round: usize) {
    let endpoint = endpoint("soft0");
    let (mut peer, server) = start(&endpoint, role).await;
    if role == "sends" {
        for _ in 0..round {
            received(&server, LENGTH).await;
        }
        peer.kill().unwrap();
        while server.receive().await.is_ok_and(|message| message.is_some()) {}
        server.receive().await.unwrap_err();
    } else {
        for _ in 0..round {
            server.send(&message(LENGTH)).await.unwrap();
        }
        tokio::join!(send_all(&server), send_all(&server), send_all(&server), end(&mut peer));
    }
    assert!(!spawn_blocking(move || peer.wait().unwrap()).await.unwrap().success());
    drop(server);
    returned(&endpoint, 0).await;
}

/// Sends until that fails.
async fn send_all(server: &Messages) {
    while server.send(&message(LENGTH)).await.is_ok() {}
}

/// Kills the peer after other tasks have begun to send.
async fn end(peer: &mut Child) {
    for _ in 0..10 {
        yield_now().await;
    }
    peer.kill().unwrap();
}

/// Sends or receives until it is killed.
async fn be_killed(sends: bool, address: SocketAddr) {
    let endpoint = endpoint("soft0");
    let client = endpoint.connect_messages(address, lends()).await.unwrap();
    if sends {
        tokio::join!(send_all(&client), send_all(&client), send_all(&client));
    } else {
        while client.receive().await.is_ok() {}
    }
}

/// Exchanges a message, finishes, and exits without waiting for the end of its peer.
async fn finish(address: SocketAddr) {
    let endpoint = endpoint("soft0");
    let client = endpoint.connect_messages(address, lends()).await.unwrap();
    received(&client, LENGTH).await;
    client.send(&message(LENGTH)).await.unwrap();
    client.finish().await.unwrap();
    std::process::exit(0);
}
