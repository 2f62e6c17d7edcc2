//! Queue pairs that both ends agree on while they are connected: reconnects, and further connections.

use std::future::IntoFuture;
use std::time::Duration;

use rdma_async::{CloseReason, ConnectError, Connection, ConnectionOptions, TransportError};
use rdma_channel::prelude::*;
use rdma_mem::AccessFlags;

use crate::control::{DEVICES, HANG, Host, SHORT, run};

/// Two ends with that time limit for a queue pair. Connecting must also fit into the limit. On a busy machine, it may
/// need several attempts.
async fn pair_with(host: &Host, limit: Duration) -> (Connection, Connection) {
    let mut failed = 0;
    loop {
        let options = host.options().rendezvous_timeout(limit);
        let listener = host.driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
        let connect = host.driver.connect(listener.local_addr(), options);
        match tokio::try_join!(connect, listener.accept()) {
            Ok(((client, _), server)) => break (client, server),
            Err(error) => assert!(failed < 30, "{error}"),
        }
        failed += 1;
    }
}

/// The client makes a mistake, which ends the queue pairs of both ends.
async fn fail(host: &Host, client: &Connection) {
    let nowhere = host.pd.allocate_shared_region(8, AccessFlags::new()).unwrap();
    client.write(host.buffer(b"x"), nowhere.remote()).await.unwrap_err();
}

#[test]
fn a_connection_continues_with_another_queue_pair() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (client, server) = host.pair().await;
            let (clone, first) = (client.clone(), client.qpn());
            assert_eq!((client.epoch(), server.epoch()), (0, 0));
            for epoch in 1..4 {
                host.talk(&client, &server, b"before").await;
                let lost = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
                if epoch % 2 == 0 {
                    fail(&host, &client).await;
                }
                let (at_client, at_server) = tokio::join!(client.reconnect(), server.reconnect());
                assert_eq!((at_client.unwrap(), at_server.unwrap()), (epoch, epoch));
                // Outstanding operations have failed and returned their memory. The new queue pair repeats none of
                // them.
                let failed = lost.await.unwrap_err();
                assert_eq!(failed.memory.as_ref().unwrap().len(), 8);
                assert!(matches!(failed.error, TransportError::Closed { .. }), "{failed}");
                assert_eq!((client.closed(), server.closed()), (None, None));
                host.talk(&client, &server, b"behind").await;
                host.talk(&server, &clone, b"and back").await;
            }
            assert_eq!((clone.epoch(), server.epoch()), (3, 3));
            assert_ne!(client.qpn(), first);
            assert_eq!(client.qpn(), clone.qpn());
            drop((client, clone));
            let receive = server.receive(host.pool.allocate(8).unwrap()).await;
            let reason = CloseReason::Disconnected;
            let failed = receive.unwrap_err();
            assert!(
                matches!(failed.error, TransportError::Closed { reason: r, .. } if r == reason),
                "{failed}"
            );
            let gone = server.reconnect().await.unwrap_err();
            assert!(matches!(gone, ConnectError::Closed { .. }), "{gone}");
        }
    });
}

/// The server starts long before the client, or after it.
#[test]
fn either_end_may_be_first() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        for epoch in 1..3 {
            let (first, second) = if epoch == 1 { (&client, &server) } else { (&server, &client) };
            let begun = tokio::spawn({
                let first = first.clone();
                async move { first.reconnect().await }
            });
            // The other end learns that the queue pair has ended.
            let waits = second.receive(host.pool.allocate(8).unwrap()).await.unwrap_err();
            assert!(matches!(waits.error, TransportError::Closed { .. }), "{waits}");
            assert_eq!(second.closed(), Some(CloseReason::Disconnected));
            assert_eq!(second.reconnect().await.unwrap(), epoch);
            assert_eq!(begun.await.unwrap().unwrap(), epoch);
            host.talk(&client, &server, b"again").await;
        }
    });
}

#[test]
fn reconnecting_without_the_peer_times_out() {
    run(|| async {
        let host = Host::new("soft0");
        const LIMIT: Duration = Duration::from_secs(1);
        let (client, server) = pair_with(&host, LIMIT).await;
        for end in [&client, &server] {
            let late = end.reconnect().await.unwrap_err();
            assert!(matches!(late, ConnectError::Timeout { limit: LIMIT, .. }), "{late}");
            let late = end.connect_additional(1, host.pd.create_qp()).await.unwrap_err();
            assert!(late.to_string().contains("with number 1"), "{late}");
        }
        assert!(client.closed().is_some() && server.closed().is_some());
        drop((client, server));
        // The other end does not find an abandoned attempt later.
        let (client, server) = pair_with(&host, HANG).await;
        for _ in 0..3 {
            for end in [&client, &server] {
                let given_up = tokio::time::timeout(SHORT / 10, end.reconnect()).await;
                assert!(given_up.is_err());
                let further = end.connect_additional(7, host.pd.create_qp());
                assert!(tokio::time::timeout(SHORT / 10, further).await.is_err());
            }
        }
        let (at_client, at_server) = tokio::join!(client.reconnect(), server.reconnect());
        assert_eq!(at_client.unwrap(), at_server.unwrap());
        host.talk(&client, &server, b"at last").await;
    });
}

/// Such a connection has its own domain, port and rights, and lives as long as either connection.
#[test]
fn further_connections_have_their_own_options() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (client, server) = host.pair().await;
            let own = host.pd.context().allocate_pd().unwrap();
            let may = AccessFlags::new().with_remote_atomic();
            let (one, other) = tokio::join!(
                client.connect_additional(5, host.pd.create_qp()),
                server.connect_additional(5, own.create_qp().access(may)),
            );
            let (one, other) = (one.unwrap(), other.unwrap());
            let taken = client.connect_additional(5, host.pd.create_qp()).await.unwrap_err();
            assert!(matches!(taken, ConnectError::NumberTaken { number: 5 }), "{taken}");
            let taken = client.connect_additional(0, host.pd.create_qp()).await.unwrap_err();
            assert!(matches!(taken, ConnectError::NumberTaken { number: 0 }), "{taken}");
            let access = AccessFlags::new().with_local_write().with_remote_atomic();
            let word = own.allocate_shared_region(8, access).unwrap();
            assert_eq!(one.fetch_add(word.remote(), 3).await.unwrap(), 0);
            // Its right does not apply to the first connection, which fails alone.
            client.fetch_add(word.remote(), 3).await.unwrap_err();
            assert_eq!(one.fetch_add(word.remote(), 3).await.unwrap(), 3, "{device}");
            assert_eq!((one.closed(), other.closed()), (None, None));
            // A further connection works after the first one is gone.
            drop((client, server));
            assert_eq!(one.fetch_add(word.remote(), 3).await.unwrap(), 6);
            let (a, b) = tokio::join!(one.reconnect(), other.reconnect());
            assert_eq!(a.unwrap(), b.unwrap());
            assert_eq!(one.fetch_add(word.remote(), 3).await.unwrap(), 9);
            drop(one);
            let waits = other.receive_imm().await.unwrap_err();
            let reason = CloseReason::Disconnected;
            assert!(
                matches!(waits.error, TransportError::Closed { reason: r, .. } if r == reason),
                "{waits}"
            );
        }
    });
}

/// A number is free again at both ends after its connection was dropped.
#[test]
fn many_further_connections_are_made_at_once_and_their_numbers_reused() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        for round in 0..3_u32 {
            let mut ends = Vec::new();
            for number in 1..20 {
                for end in [&client, &server] {
                    let (end, qp) = (end.clone(), host.pd.create_qp());
                    ends.push(tokio::spawn(
                        async move { end.connect_additional(number, qp).await },
                    ));
                }
            }
            let mut connected = Vec::new();
            for end in ends {
                connected.push(end.await.unwrap().unwrap());
            }
            for pair in connected.chunks(2) {
                assert_eq!(pair[0].epoch(), pair[1].epoch());
                host.talk(&pair[0], &pair[1], &round.to_be_bytes()).await;
            }
        }
        host.talk(&client, &server, b"still there").await;
    });
}

#[test]
fn reconnecting_needs_a_control_connection() {
    run(|| async {
        let host = Host::new("soft0");
        let (one, other) = host.pair_by_hand();
        let refused = one.reconnect().await.unwrap_err();
        assert!(matches!(refused, ConnectError::NoControl), "{refused}");
        let refused = one.connect_additional(1, host.pd.create_qp()).await.unwrap_err();
        assert!(matches!(refused, ConnectError::NoControl), "{refused}");
        // The refusal has changed nothing.
        host.talk(&one, &other, b"as before").await;
        let options = ConnectionOptions::new(&host.pd);
        let mut listener = host.pd.create_channel().listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr();
        let channel = tokio::task::spawn_blocking(move || listener.accept().unwrap());
        let (with_channel, _) = host.driver.connect(address, options).await.unwrap();
        let refused = with_channel.reconnect().await.unwrap_err();
        assert!(matches!(refused, ConnectError::NoControl), "{refused}");
        drop(channel.await.unwrap());
    });
}

/// Two tasks cannot create the same queue pair.
#[test]
fn one_task_at_a_time_reconnects() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        let both = async { tokio::join!(client.reconnect(), client.reconnect()) };
        let ((first, second), there) = tokio::join!(both, server.reconnect());
        assert_eq!((first.unwrap(), there.unwrap()), (1, 1));
        let taken = second.unwrap_err();
        assert!(matches!(taken, ConnectError::NumberTaken { number: 0 }), "{taken}");
        host.talk(&client, &server, b"once").await;
    });
}

/// A close succeeds although another task is reconnecting the connection.
#[test]
fn a_connection_closed_while_reconnecting_stays_closed() {
    run(|| async {
        let host = Host::new("soft0");
        for gracefully in [false, true] {
            let (client, server) = host.pair().await;
            let again = tokio::spawn({
                let server = server.clone();
                async move { server.reconnect().await }
            });
            // The task waits for the client.
            client.receive_imm().await.unwrap_err();
            if gracefully {
                server.disconnect(HANG).await.unwrap();
            } else {
                server.close().unwrap();
            }
            let (at_client, at_server) = tokio::join!(client.reconnect(), again);
            let closed = at_server.unwrap().unwrap_err();
            assert!(matches!(closed, ConnectError::Io { .. }), "{closed:?}");
            assert!(server.closed().is_some());
            // The client may have started with a queue pair that has ended since.
            drop((at_client, server));
            let failed = client.receive_imm().await.unwrap_err();
            assert!(matches!(failed.error, TransportError::Closed { .. }), "{failed}");
        }
    });
}

/// More at a time than the server remembers. The last one is refused, and the others are not affected.
#[test]
fn too_many_queue_pairs_at_a_time_are_refused_locally() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        let mut ends = tokio::task::JoinSet::new();
        for number in 1..=70 {
            let (client, qp) = (client.clone(), host.pd.create_qp());
            ends.spawn(async move { client.connect_additional(number, qp).await });
        }
        let mut busy = 0;
        while busy < 6 {
            let refused = ends.join_next().await.unwrap().unwrap().unwrap_err();
            assert!(matches!(refused, ConnectError::Busy(_)), "{refused}");
            busy += 1;
        }
        ends.shutdown().await;
        let (one, other) = tokio::join!(
            client.connect_additional(71, host.pd.create_qp()),
            server.connect_additional(71, host.pd.create_qp())
        );
        host.talk(&one.unwrap(), &other.unwrap(), b"still there").await;
        host.talk(&client, &server, b"and so are these").await;
    });
}

#[test]
fn a_ring_posts_its_receives_again_after_a_reconnect() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (client, server) = host.pair().await;
            let mut ring =
                server.receive_ring([host.buffer(&[0; 8]), host.buffer(&[0; 8])]).unwrap();
            fail(&host, &client).await;
            let (at_client, at_server) = tokio::join!(client.reconnect(), server.reconnect());
            assert_eq!((at_client.unwrap(), at_server.unwrap()), (1, 1));
            for _ in 0..2 {
                ring.next().await.unwrap_err(); // receives of the ended queue pair
            }
            let (sent, received) =
                tokio::join!(client.send(host.buffer(b"again")).into_future(), ring.next());
            sent.unwrap();
            assert_eq!(*received.unwrap(), *b"again");
            assert_eq!(ring.posted(), 2, "{device}");
        }
    });
}
