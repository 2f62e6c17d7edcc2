//! Servers with a changing set of clients.

mod bad_clients;
mod joining;
mod leaving;
mod memory;
mod messages;
mod own_receives;
mod process;
mod provider;
mod siege;
mod waiting;
mod wake_ups;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_channel::{
    Buffer, Channel, LeftReason, PeerId, Server, ServerBuilder, ServerEvent, prelude::*,
};
use rdma_mem::ProtectionDomain;

use crate::common::{DEFERRED, NO_SRQ, WIRE, WIRE_NO_SRQ, connected};

/// Devices that work by themselves.
const DEVICES: [&str; 6] = ["soft0", "softib0", WIRE, DEFERRED, NO_SRQ, WIRE_NO_SRQ];
/// A device with shared receive queues, and one without.
const KINDS: [&str; 2] = ["soft0", NO_SRQ];
const LOCALHOST: &str = "127.0.0.1:0";
/// The time limit for something that should happen.
const LATER: Duration = Duration::from_secs(60);
/// The time that a test waits for something that should not happen.
const SOON: Duration = Duration::from_millis(100);

fn domain(device: &str) -> ProtectionDomain {
    crate::common::open(device).allocate_pd().unwrap()
}

fn server(device: &str) -> Server {
    server_with(device, |builder| builder)
}

fn server_with(
    device: &str,
    knobs: impl for<'a> FnOnce(ServerBuilder<'a>) -> ServerBuilder<'a>,
) -> Server {
    let pd = domain(device);
    knobs(pd.create_server().rendezvous_timeout(LATER)).bind(LOCALHOST).unwrap()
}

/// A client with its own domain.
fn connect(device: &str, to: SocketAddr) -> Channel {
    let pd = domain(device);
    let connect = || pd.create_channel().rendezvous_timeout(LATER).connect(to);
    connected(connect).0.0
}

/// A client that has joined the server.
fn join(device: &'static str, server: &mut Server) -> (PeerId, Channel) {
    let to = server.local_addr();
    let client = std::thread::spawn(move || connect(device, to));
    let peer = joined(server);
    (peer, client.join().unwrap())
}

fn next(server: &mut Server) -> ServerEvent {
    let event = server.next(Some(LATER)).unwrap();
    event.unwrap_or_else(|| panic!("nothing happens"))
}

fn joined(server: &mut Server) -> PeerId {
    match next(server) {
        ServerEvent::Joined { peer, .. } => peer,
        other => panic!("{other:?}"),
    }
}

fn message(server: &mut Server) -> (PeerId, Buffer, usize) {
    match next(server) {
        ServerEvent::Message { peer, buffer, length, .. } => (peer, buffer, length),
        other => panic!("{other:?}"),
    }
}

fn left(server: &mut Server) -> (PeerId, LeftReason) {
    match next(server) {
        ServerEvent::Left { peer, reason } => (peer, reason),
        other => panic!("{other:?}"),
    }
}

fn assert_quiet(server: &mut Server) {
    let begin = Instant::now();
    let event = server.next(Some(SOON)).unwrap();
    assert!(event.is_none(), "{event:?}");
    assert!(begin.elapsed() >= SOON);
}
