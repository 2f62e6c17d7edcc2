//! The ways in which one end notices that the other is gone.

use std::time::Duration;

use rdma_async::{CloseReason, ConnectError, TransportError};
use rdma_channel::prelude::*;
use rdma_channel::{ReceiveWorkRequest, TransportError as ChannelError};
use rdma_mem::AsyncEventKind;
use tokio::time::timeout;

use crate::common::device_with_port;
use crate::common::peer::{self, Peer};
use crate::common::provider::Provider;
use crate::control::{DEVICES, HANG, Host, run};

fn is_gone(error: &TransportError) -> bool {
    matches!(error, TransportError::Closed { reason: CloseReason::Disconnected, peer: Some(_), .. })
}

/// Earlier messages are received, and outstanding receives fail.
#[test]
fn a_peer_that_closes_ends_outstanding_operations() {
    run(|| async {
        for device in DEVICES {
            for closes in [false, true] {
                let host = Host::new(device);
                let (client, server) = host.pair().await;
                let first = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
                let second = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
                client.send(host.buffer(b"last")).await.unwrap();
                if closes {
                    client.close().unwrap();
                } else {
                    drop(client);
                }
                assert_eq!(first.await.unwrap().length, 4, "{device}");
                let failed = second.await.unwrap_err();
                assert!(is_gone(&failed.error), "{device}: {failed}");
                assert_eq!(failed.memory.as_ref().unwrap().len(), 8);
                let after = server.send(failed.memory.unwrap()).await.unwrap_err();
                assert!(is_gone(&after.error), "{device}: {after}");
                assert_eq!(server.closed(), Some(CloseReason::Disconnected));
            }
        }
    });
}

/// A connection whose request has failed notifies its peer by the end of the stream.
#[test]
fn a_failed_connection_ends_the_peer() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        let receive = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
        let nowhere = host.pd.allocate_shared_region(8, rdma_mem::AccessFlags::new()).unwrap();
        let failed = client.write(host.buffer(b"x"), nowhere.remote()).await.unwrap_err();
        assert!(matches!(failed.error, TransportError::WorkError(_)), "{failed}");
        let told = receive.await.unwrap_err().error;
        let is_closed =
            matches!(told, TransportError::Closed { .. } | TransportError::WorkError(_));
        assert!(is_closed, "{told}");
    });
}

/// The next frame after the end is the answer to a beat, although the program keeps the failed connection.
#[test]
fn the_end_of_a_connection_is_sent_once() {
    run(|| async {
        let host = Host::new("soft0");
        let (mut peer, server) = peer::pair(&host).await;
        let nowhere = host.pd.allocate_shared_region(8, rdma_mem::AccessFlags::new()).unwrap();
        server.write(host.buffer(b"x"), nowhere.remote()).await.unwrap_err();
        assert_eq!(peer.hear().await.0, 4);
        peer.say(&peer::head(6, 0, 0)).await;
        assert_eq!(peer.hear().await.0, 7);
        drop(server);
    });
}

#[test]
fn a_watching_channel_notices_a_dropped_connection() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let pd = host.pd.clone();
        let channel = tokio::task::spawn_blocking(move || {
            let watching = pd.create_channel().watch(Duration::from_secs(10));
            let mut channel = watching.connect(address).unwrap().0;
            channel.receive(ReceiveWorkRequest::only_immediate()).unwrap_err()
        });
        drop(listener.accept().await.unwrap());
        let error = channel.await.unwrap();
        assert!(matches!(error, ChannelError::PeerGone { .. }), "{error}");
    });
}

/// Clients that were not accepted are turned away when the listener ends, and accepted connections continue.
#[test]
fn a_dropped_listener_leaves_its_connections_open() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let connect = host.driver.connect(address, host.options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let late = tokio::spawn({
            let (driver, options) = (host.driver.clone(), host.options());
            async move { driver.connect(address, options).await }
        });
        let incoming = listener.incoming().await.unwrap();
        drop(listener);
        drop(incoming);
        let error = late.await.unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Rejected(_)), "{error}");
        host.talk(&client.unwrap().0, &server.unwrap(), b"still here").await;
    });
}

/// A runtime that ends closes its listeners and connections; peers in another runtime are notified.
#[test]
fn a_runtime_that_ends_is_noticed_at_both_ends() {
    let build =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (servers, clients) = (build().unwrap(), build().unwrap());
    let host = clients.block_on(async { Host::new("soft0") });
    let (listener, address) = servers.block_on(async {
        let host = Host::new("soft0");
        host.listen().await
    });
    let connect = clients.spawn({
        let (driver, options) = (host.driver.clone(), host.options());
        async move { driver.connect(address, options).await }
    });
    let server = servers.block_on(listener.accept()).unwrap();
    let client = clients.block_on(connect).unwrap().unwrap().0;
    let receive = client.receive(host.pool.allocate(8).unwrap()).try_post().unwrap();
    drop(servers);
    assert!(server.closed().is_some());
    let told = clients.block_on(async { timeout(HANG, receive).await });
    let told = told.unwrap().unwrap_err();
    assert!(is_gone(&told.error), "{told}");
    let ended = clients.block_on(async { timeout(HANG, listener.accept()).await });
    let ended = ended.unwrap().unwrap_err();
    assert!(ended.to_string().contains("has ended, for example with its runtime"), "{ended}");
}

/// A port that goes down ends its connections, and all waiting operations fail.
#[test]
fn a_port_that_goes_down_ends_its_connections() {
    run(|| async {
        let name = format!("soft-port-{}", std::process::id());
        let device = device_with_port(&name);
        let host = Host::new(&name);
        let (client, server) = host.pair().await;
        let mut events = [host.driver.events().unwrap(), host.driver.events().unwrap()];
        let mut receives = Vec::new();
        for end in [&client, &server] {
            receives.push(end.receive(host.pool.allocate(8).unwrap()).post().await.unwrap());
        }
        device.set_port_up(false);
        let is_port =
            |reason| matches!(reason, CloseReason::Port { port: 1 } | CloseReason::Disconnected);
        for receive in receives {
            let ended = receive.await.unwrap_err().error;
            assert!(
                matches!(ended, TransportError::Closed { reason, .. } if is_port(reason)),
                "{ended}"
            );
        }
        for events in &mut events {
            assert_eq!(events.next().await.unwrap().kind, AsyncEventKind::PORT_ERR);
        }
        device.set_port_up(true);
        assert_eq!(events[0].next().await.unwrap().kind, AsyncEventKind::PORT_ACTIVE);
        assert!(client.closed().is_some_and(is_port) && server.closed().is_some_and(is_port));
    });
}

/// The same for a device that fails.
#[test]
fn a_device_that_fails_ends_its_connections() {
    run(|| async {
        let name = format!("soft-fatal-{}", std::process::id());
        let device = device_with_port(&name);
        let (pd, provider) = Provider::faulty(&name);
        provider.fail_with_the_port();
        let host = Host::with(pd);
        let (one, other) = host.pair_by_hand();
        let mut events = host.driver.events().unwrap();
        let receive = one.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
        device.set_port_up(false);
        let ended = timeout(HANG, receive).await.unwrap().unwrap_err();
        let is_device = |reason| matches!(reason, CloseReason::Device);
        assert!(
            matches!(ended.error, TransportError::Closed { reason, .. } if is_device(reason)),
            "{ended}"
        );
        assert_eq!(ended.memory.as_ref().unwrap().len(), 8);
        assert_eq!(events.next().await.unwrap().kind, AsyncEventKind::DEVICE_FATAL);
        assert!(one.closed().is_some_and(is_device) && other.closed().is_some_and(is_device));
        drop((one, other, events, ended, host));
        provider.gone().await;
    });
}

/// A stream that is reset, as after a process was killed with unread bytes, ends the connection like one that is
/// closed.
#[test]
fn a_stream_that_is_reset_ends_the_connection() {
    run(|| async {
        let host = Host::new("soft0");
        let (Peer { stream, connection }, server) = peer::pair_with(&host, host.options()).await;
        let receive = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
        stream.set_zero_linger().unwrap();
        drop(stream);
        let ended = timeout(HANG, receive).await.unwrap().unwrap_err();
        let died =
            TransportError::Closed { reason: CloseReason::Died, peer: server.peer(), event: None };
        assert_eq!(ended.error.to_string(), died.to_string());
        assert_eq!(connection.closed(), None, "its queue pair alone notices nothing");
    });
}

/// The kernel probes the peer's machine, and ends the stream if it does not answer.
#[test]
fn the_kernel_probes_a_silent_machine() {
    run(|| async {
        let host = Host::new("soft0");
        let limit = Duration::from_secs(40);
        let (peer, _server) = peer::pair_with(&host, host.options().peer_timeout(limit)).await;
        let (here, there) = (peer.stream.peer_addr().unwrap(), peer.stream.local_addr().unwrap());
        let asks = async {
            loop {
                if let Some(ticks) = asks_after(here.port(), there.port()) {
                    break ticks;
                }
                tokio::task::yield_now().await;
            }
        };
        let ticks = timeout(HANG, asks).await.unwrap();
        // It probes four times within the limit.
        let longest = limit.as_secs() / 4 * rustix::param::clock_ticks_per_second();
        assert!(ticks <= longest, "after {ticks} ticks, more than {longest}");
    });
}

/// The number of clock ticks until TCP probes the other end of that stream: the timer of keep-alive (2) in
/// `/proc/net/tcp`.
fn asks_after(here: u16, there: u16) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_of = |field: usize, port: u16| fields[field].ends_with(&format!(":{port:04X}"));
        let after = fields.get(5)?.strip_prefix("02:")?;
        (is_of(1, here) && is_of(2, there)).then(|| u64::from_str_radix(after, 16).unwrap())
    })
}

/// The stream of a connection belongs to the runtime that has connected; the driver may belong to another one.
#[test]
fn a_connection_ends_with_the_runtime_that_watches_its_peer() {
    let build =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (drivers, connects) = (build().unwrap(), build().unwrap());
    let host = drivers.block_on(async { Host::new("soft0") });
    let (client, server) = connects.block_on(host.pair());
    drivers.block_on(async {
        let receive = client.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
        drop((server, connects.shutdown_background()));
        let told = timeout(HANG, receive).await.unwrap().unwrap_err();
        assert!(matches!(told.error, TransportError::Closed { .. }), "{told}");
    });
}

/// A peer that sends much where it should send nothing does not keep tasks from running.
#[test]
fn a_peer_that_floods_the_control_connection_changes_nothing() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let pd = host.pd.clone();
        // A client that is a channel, on a stream that the test controls.
        let (front, back) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), address);
        let at = front.local_addr().unwrap();
        let (accepted, is_accepted) = std::sync::mpsc::channel();
        let relay = std::thread::spawn(move || {
            let (client, _) = front.accept().unwrap();
            let server = std::net::TcpStream::connect(back).unwrap();
            let (mut from_server, mut to_client) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            let down = std::thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
            let (mut from_client, mut to_server) = (client, server);
            let mut block = [0; 4096];
            // HELLO and READY, and then as many bytes as the stream accepts.
            for _ in 0..2 {
                use std::io::{Read, Write};
                let count = from_client.read(&mut block).unwrap();
                to_server.write_all(&block[..count]).unwrap();
            }
            // The server may not have accepted it yet.
            is_accepted.recv().unwrap();
            while std::io::Write::write_all(&mut to_server, &block).is_ok() {}
            drop((from_client, to_server));
            down.join().unwrap()
        });
        let client = tokio::task::spawn_blocking(move || {
            let watching = pd.create_channel().watch(Duration::from_secs(10));
            watching.connect(at).unwrap().0
        });
        let server = listener.accept().await.unwrap();
        accepted.send(()).unwrap();
        let mut client = client.await.unwrap();
        let receive = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
        // This task runs, and messages arrive.
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.closed(), None);
        let region = host.pd.allocate_region(4).unwrap();
        client.send_from(&region).unwrap();
        assert_eq!(receive.await.unwrap().length, 4);
        drop(server);
        drop(client);
        tokio::task::spawn_blocking(move || drop(relay.join())).await.unwrap();
    });
}
