//! Cases for connections of iWARP devices, which the kernel makes over TCP.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::thread;

use rdma_async::{ConnectionOptions, Driver};
use rdma_channel::Channel;
use rdma_channel::prelude::*;
use rdma_cm::{Connecting, End, Error, Listener, Reason};
use rdma_mem::BufferPool;

use crate::case::cases;
use crate::cases::connection::by_address::{BOUND, Node, is_iwarp};
use crate::device::Device;

cases![
    a_host_that_does_not_answer_delays_no_other_connection,
    a_peer_that_does_not_answer_delays_no_other_connection,
    requests_that_the_program_does_not_answer_are_rejected,
    localhost_leads_to_the_device,
    a_message_without_a_receive_ends_its_connection,
];

/// The length of a request without private data (RFC 5044, section 7.1).
const REQUEST: usize = 20;
/// The connections to a silent peer. If each waited until `siw` gives up, which takes 10 s, the case would be killed.
const SILENT: usize = 16;

/// Returns the objects of an iWARP device.
fn node_of(device: &Device) -> Node {
    let node = Node::new(device);
    device.needs(is_iwarp(node.channel.context()), "the device does not speak iWARP");
    node
}

/// Connects two queue pairs of the device, and disconnects them.
fn connect(node: &Node) {
    let (active, passive) = node.connect(&node.listen());
    drop(active);
    assert!(matches!(passive.wait(BOUND).unwrap(), End::Disconnected { .. }));
}

#[track_caller]
fn expect_rejected(connecting: Connecting) {
    let Err(Error::Ended(End::Rejected { reason, .. })) = connecting.wait(BOUND) else { panic!() };
    assert_eq!(reason, Reason::CONSUMER_DEFINED);
}

fn a_host_that_does_not_answer_delays_no_other_connection(device: &Device) {
    let node = node_of(device);
    device.needs(&**device == "siw0", "only the interface of siw0 is known to reach no host");
    let IpAddr::V4(ip) = node.ip else { panic!("an IPv6 address") };
    // The kernel repeats the first packet of the TCP connection for about two minutes.
    let nobody = Ipv4Addr::from_bits(ip.to_bits() ^ 64);
    let resolved = node.channel.resolve((nobody, 7471)).unwrap();
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    connect(&node);
    drop(connecting);
    connect(&node);
}

fn a_peer_that_does_not_answer_delays_no_other_connection(device: &Device) {
    let node = node_of(device);
    let silent = TcpListener::bind((node.ip, 0)).unwrap();
    let resolved = node.channel.resolve(silent.local_addr().unwrap()).unwrap();
    // The peer keeps the TCP connections.
    let _streams: Vec<_> = (0..SILENT)
        .map(|_| {
            let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
            let (mut stream, _) = silent.accept().unwrap();
            stream.read_exact(&mut [0; REQUEST]).unwrap();
            connect(&node);
            drop(connecting);
            connect(&node);
            stream
        })
        .collect();
}

fn requests_that_the_program_does_not_answer_are_rejected(device: &Device) {
    let node = node_of(device);
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let connect = || resolved.connect(node.queue_pair(), b"").unwrap();
    let connecting = connect();
    drop(listener.incoming(BOUND).unwrap());
    expect_rejected(connecting);
    let connecting = connect();
    drop(listener.incoming(BOUND).unwrap().prepare(node.queue_pair()).unwrap());
    expect_rejected(connecting);
    // The program receives one request. The other one has arrived, or finds no listener.
    let both = [connect(), connect()];
    let request = listener.incoming(BOUND).unwrap();
    drop((listener, request));
    for connecting in both {
        let error = connecting.wait(BOUND).unwrap_err();
        assert!(matches!(error, Error::Ended(_)), "{error}");
    }
}

fn localhost_leads_to_the_device(device: &Device) {
    let node = node_of(device);
    let listener = Listener::bind(&node.channel, "127.0.0.1:0").unwrap();
    assert!(listener.local_address().ip().is_loopback());
    for to in [Ipv4Addr::LOCALHOST.into(), node.ip] {
        let resolved = node.channel.resolve((to, listener.local_address().port())).unwrap();
        assert_eq!(resolved.address().ip(), node.ip);
        let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
        let request = listener.incoming(BOUND).unwrap();
        assert_eq!(request.peer_address().ip(), node.ip);
        let accepted = request.prepare(node.queue_pair()).unwrap().accept(b"").unwrap();
        let active = connecting.wait(BOUND).unwrap().establish().unwrap();
        drop((active, accepted.wait(BOUND).unwrap()));
    }
}

fn a_message_without_a_receive_ends_its_connection(device: &Device) {
    let node = node_of(device);
    // The kernel flushes the queue pair before it reports the end of the connection.
    let expect_end = |error: &dyn std::error::Error| {
        let text = error.to_string();
        let is_end = text.contains("the iWARP connection has ended") || text.contains("flushed");
        assert!(is_end, "{text}");
    };
    let mut listener = node.pd.create_channel().listen_cm((node.ip, 0)).unwrap();
    let (address, pd) = (listener.local_addr(), node.pd.clone());
    let client = thread::spawn(move || Channel::connect_cm(address, &pd).unwrap());
    let mut server = listener.accept().unwrap();
    let mut client = client.join().unwrap();
    let mut region = node.pd.allocate_region(8).unwrap();
    // TCP has accepted the message, or the connection has ended before the completion is polled.
    let _ = client.send_from(&region);
    expect_end(&client.receive_into(&mut region).unwrap_err());
    expect_end(&server.receive_into(&mut region).unwrap_err());

    let exchange = async {
        let driver = Driver::spawn(node.pd.context()).unwrap();
        let options = || ConnectionOptions::from(node.pd.create_qp()).rendezvous_timeout(BOUND);
        let listener = driver.listen_cm((node.ip, 0), options()).await.unwrap();
        let connect = driver.connect_cm(listener.local_addr(), options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let ((client, _), server) = (client.unwrap(), server.unwrap());
        let pool = BufferPool::new(&node.pd);
        let _ = client.send(pool.allocate(5).unwrap()).await;
        for end in [&client, &server] {
            expect_end(&end.receive(pool.allocate(5).unwrap()).await.unwrap_err());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, exchange).await.unwrap() });
}
