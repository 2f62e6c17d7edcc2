//! Two ends that become a connection.

use std::time::Duration;

use rdma_async::{ConnectError, ConnectionOptions};
use rdma_channel::prelude::*;
use rdma_channel::{ReceiveWorkRequest, SendWorkRequest};
use rdma_mem::{AccessFlags, GatherList, ScatterList};
use tokio::time::timeout;

use crate::control::{DEVICES, HANG, Host, SHORT, run};

#[test]
fn both_ends_receive_user_bytes_and_can_exchange_messages() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (listener, address) = host.listen().await;
            let client = tokio::spawn({
                let (driver, options) = (host.driver.clone(), host.options());
                async move { driver.connect(address, options.user_bytes(b"let me in")).await }
            });
            let incoming = listener.incoming().await.unwrap();
            assert_eq!(incoming.user_bytes(), b"let me in");
            assert!(incoming.peer_addr().ip().is_loopback());
            let server = incoming.accept(b"come in").unwrap();
            let (client, told) = client.await.unwrap().unwrap();
            assert_eq!(*told, *b"come in");
            assert_eq!(server.peer().unwrap().qpn, client.qpn());
            host.talk(&client, &server, b"there").await;
            host.talk(&server, &client, b"and back").await;
        }
    });
}

/// Accepted connections also have the options of the queue pair.
#[test]
fn accepted_connections_have_the_options_of_the_listener() {
    run(|| async {
        let host = Host::new("soft0");
        let access = AccessFlags::new().with_remote_atomic();
        let options = || ConnectionOptions::from(host.pd.create_qp().max_recv_wr(1).access(access));
        let listener = host.driver.listen("127.0.0.1:0", options()).await.unwrap();
        let connect = host.driver.connect(listener.local_addr(), options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let (client, server) = (client.unwrap().0, server.unwrap());
        let board = host.pd.allocate_shared_region(8, access.with_local_write()).unwrap();
        for end in [&client, &server] {
            assert_eq!(end.fetch_add(board.remote(), 3).await.unwrap() % 3, 0);
            // One receive stays posted, and another one has no slot.
            let _first = end.receive(host.pool.allocate(8).unwrap()).try_post().unwrap();
            end.receive(host.pool.allocate(8).unwrap()).try_post().unwrap_err();
        }
    });
}

#[test]
fn a_rejected_client_receives_the_reason() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        for (why, shown) in [(Some("no password"), "no password"), (None, "gave no reason")] {
            let client = tokio::spawn({
                let (driver, options) = (host.driver.clone(), host.options());
                async move { driver.connect(address, options).await }
            });
            let incoming = listener.incoming().await.unwrap();
            match why {
                Some(why) => incoming.reject(why),
                None => drop(incoming),
            }
            let error = client.await.unwrap().unwrap_err();
            assert!(
                matches!(&error, ConnectError::Rejected(said) if said.contains(shown)),
                "{error}"
            );
        }
        assert_eq!(listener.refused(), 0, "a rejected client does not count");
    });
}

#[test]
fn connect_errors_name_the_cause() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let connect = |options| host.driver.connect(address, options);
        let long = connect(host.options().user_bytes(&[7; 1025])).await;
        assert!(matches!(long, Err(ConnectError::UserBytesTooLong { length: 1025, most: 1024 })));
        // The program does not decide.
        let late = connect(host.options().rendezvous_timeout(SHORT)).await.unwrap_err();
        assert!(matches!(late, ConnectError::Timeout { limit: SHORT, .. }), "{late}");
        drop(listener);
        // The listener may still hold its last client.
        let gone = async {
            while !matches!(connect(host.options()).await, Err(ConnectError::NobodyListens { .. }))
            {
            }
        };
        timeout(HANG, gone).await.unwrap();
        let nowhere = host.driver.connect("no such host", host.options()).await.unwrap_err();
        assert!(matches!(nowhere, ConnectError::Resolve { .. }), "{nowhere}");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = host.driver.listen(taken.local_addr().unwrap(), host.options()).await;
        assert!(taken.unwrap_err().to_string().contains("another program listens there"));
        let impossible = host.pd.create_qp().max_send_wr(1 << 20);
        let impossible = host.driver.listen("127.0.0.1:0", impossible).await.unwrap_err();
        assert!(matches!(impossible, ConnectError::Verbs(_)), "{impossible}");
    });
}

/// A waiting accept can be dropped at any time.
#[test]
fn a_dropped_accept_loses_no_client() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let clients: Vec<_> = (0..20_u8)
            .map(|n| {
                let (driver, options) = (host.driver.clone(), host.options());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(u64::from(n))).await;
                    driver.connect(address, options.user_bytes(&[n])).await
                })
            })
            .collect();
        let mut accepted = Vec::new();
        while accepted.len() < clients.len() {
            if let Ok(incoming) = timeout(Duration::from_micros(300), listener.incoming()).await {
                let incoming = incoming.unwrap();
                let n = incoming.user_bytes()[0];
                accepted.push((n, incoming.accept(&[n]).unwrap()));
            }
        }
        for (n, client) in (0..).zip(clients) {
            let (_connection, told) = client.await.unwrap().unwrap();
            assert_eq!(*told, [n]);
        }
        assert_eq!(listener.refused(), 0);
    });
}

/// Many tasks wait at one listener.
#[test]
fn each_client_goes_to_one_waiting_task() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let listener = std::sync::Arc::new(listener);
        let servers: Vec<_> = (0..8)
            .map(|_| {
                let listener = std::sync::Arc::clone(&listener);
                tokio::spawn(async move { listener.accept().await.map(|end| end.peer()) })
            })
            .collect();
        let mut clients = Vec::new();
        for _ in &servers {
            clients.push(host.driver.connect(address, host.options()).await.unwrap().0);
        }
        let mut peers = Vec::new();
        for server in servers {
            peers.push(server.await.unwrap().unwrap().unwrap().qpn);
        }
        peers.sort();
        let mut own: Vec<_> = clients.iter().map(|client| client.qpn()).collect();
        own.sort();
        assert_eq!(peers, own);
    });
}

/// The other end may be a channel.
#[test]
fn a_channel_can_connect_to_a_connection() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let pd = host.pd.clone();
        let client = tokio::task::spawn_blocking(move || {
            let mut channel = pd.create_channel().connect(address).unwrap().0;
            let mut data = pd.allocate_region(5).unwrap();
            data.copy_from_slice(b"hello");
            let list = GatherList::from([data.as_slice()]);
            channel.send(SendWorkRequest::from_list(&list)).unwrap();
            // Kept until the message was received.
            let last = channel.receive(ReceiveWorkRequest::only_immediate());
            assert!(last.is_ok(), "{last:?}");
        });
        let server = listener.accept().await.unwrap();
        let received = server.receive(host.pool.allocate(64).unwrap()).await.unwrap();
        assert_eq!(received.memory[..received.length], *b"hello");
        server.send(host.buffer(b"")).await.unwrap();
        client.await.unwrap();

        let mut listener = host.pd.create_channel().listen("127.0.0.1:0").unwrap();
        let (address, pd) = (listener.local_addr(), host.pd.clone());
        let server = tokio::task::spawn_blocking(move || {
            let mut channel = listener.accept().unwrap();
            let mut buffer = pd.allocate_region(5).unwrap();
            let mut list = ScatterList::from([buffer.as_slice_mut()]);
            channel.receive(ReceiveWorkRequest::from_list(&mut list)).unwrap();
            buffer.to_vec()
        });
        let (client, _) = host.driver.connect(address, host.options()).await.unwrap();
        client.send(host.buffer(b"there")).await.unwrap();
        assert_eq!(server.await.unwrap(), *b"there");
    });
}
