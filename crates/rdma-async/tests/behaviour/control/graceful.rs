//! Connections that end after all messages were sent, and peers that do not answer.

use rdma_async::{CloseReason, ConnectError, TransportError};

use crate::control::{DEVICES, HANG, Host, SHORT, run};

/// All messages are received, although the sends are not awaited.
#[test]
fn messages_before_the_end_arrive() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (client, server) = host.pair().await;
            let mut receives = Vec::new();
            for _ in 0..11 {
                receives.push(server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap());
            }
            for number in 0..10_u8 {
                drop(client.send(host.buffer(&[number])).post().await.unwrap());
            }
            let waits = client.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
            client.disconnect(HANG).await.unwrap();
            let rest = receives.pop().unwrap();
            for (number, receive) in receives.into_iter().enumerate() {
                let received = receive.await.unwrap();
                assert_eq!((usize::from(received.memory[0]), received.length), (number, 1));
            }
            for (waits, reason) in [(rest, CloseReason::Disconnected), (waits, CloseReason::Asked)]
            {
                let failed = waits.await.unwrap_err();
                let closed =
                    matches!(failed.error, TransportError::Closed { reason: r, .. } if r == reason);
                assert!(closed, "{device}: {failed}");
                assert_eq!(failed.memory.unwrap().len(), 8);
            }
            assert_eq!(server.closed(), Some(CloseReason::Disconnected));
            assert_eq!(client.closed(), Some(CloseReason::Asked));
            let after = client.send(host.buffer(b"late")).await.unwrap_err();
            assert_eq!(*after.memory.unwrap(), *b"late");
            // The connection has ended, and ending it again changes nothing.
            client.disconnect(HANG).await.unwrap();
            server.disconnect(HANG).await.unwrap();
        }
    });
}

/// The peer's own messages arrive, too, if this end has receives for them.
#[test]
fn the_peer_completes_its_sends_before_the_end() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (client, server) = host.pair().await;
            // It waits, because there is no receive for it yet.
            let answer = server.send(host.buffer(b"answer")).post().await.unwrap();
            let awaited = client.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
            client.disconnect(HANG).await.unwrap();
            answer.await.unwrap();
            assert_eq!(awaited.await.unwrap().length, 6);
        }
    });
}

#[test]
fn both_ends_may_disconnect_at_once_and_after_a_reconnect() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (client, server) = host.pair().await;
            for epoch in 1..4 {
                let (one, other) = tokio::join!(client.disconnect(HANG), server.disconnect(HANG));
                one.unwrap();
                other.unwrap();
                assert!(client.closed().is_some() && server.closed().is_some());
                let (one, other) = tokio::join!(client.reconnect(), server.reconnect());
                assert_eq!((one.unwrap(), other.unwrap()), (epoch, epoch));
                host.talk(&client, &server, b"and on").await;
            }
        }
    });
}

/// A send without a receive at the peer does not complete: the limit ends it.
#[test]
fn disconnecting_ends_at_its_limit() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        let stuck = client.send(host.buffer(b"stuck")).post().await.unwrap();
        let late = client.disconnect(SHORT).await.unwrap_err();
        assert!(matches!(late, ConnectError::Timeout { limit: SHORT, .. }), "{late}");
        let failed = stuck.await.unwrap_err();
        assert_eq!(*failed.memory.unwrap(), *b"stuck");
        drop(server);
        // Without a control connection the call waits only for the sends, not for the peer.
        let (one, other) = host.pair_by_hand();
        let receive = other.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
        drop(one.send(host.buffer(b"last")).post().await.unwrap());
        one.disconnect(HANG).await.unwrap();
        assert_eq!(receive.await.unwrap().length, 4);
    });
}

/// Only the heartbeat notices a peer whose runtime does not run. On a busy machine, such a peer may be silent before it
/// stops on purpose, and the next one is needed.
#[test]
fn the_heartbeat_notices_a_peer_that_does_not_run() {
    run(|| async { while !a_stopped_peer_is_noticed().await {} });
}

/// Returns false if the peer was silent before it stopped on purpose.
async fn a_stopped_peer_is_noticed() -> bool {
    let host = Host::new("soft0");
    let (told, address) = std::sync::mpsc::channel();
    let (hang, hangs) = std::sync::mpsc::channel::<()>();
    let peer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let host = Host::new("soft0");
            let (listener, address) = host.listen().await;
            told.send(address).unwrap();
            let connection = listener.accept().await.unwrap();
            // It answers for a while.
            if connection.receive_imm().await.is_ok() {
                // Then its runtime stops.
                let _ = hangs.recv();
            }
            drop(connection);
        });
    });
    let address = tokio::task::spawn_blocking(move || address.recv().unwrap()).await.unwrap();
    let beat = SHORT * 5;
    let options = host.options().heartbeat(beat);
    let (client, _) = host.driver.connect(address, options).await.unwrap();
    let receive = client.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
    // Waits for several beats.
    tokio::time::sleep(beat * 4).await;
    let stops = client.send_with_imm(host.pool.allocate(0).unwrap(), 1).await;
    let failed = receive.await.unwrap_err();
    assert!(failed.to_string().contains("nothing arrived from the peer for 1.5 s"), "{failed}");
    assert_eq!(client.closed(), Some(CloseReason::silent(beat * 3)));
    if stops.is_err() {
        return false;
    }
    drop(hang);
    peer.join().unwrap();
    true
}

/// Messages that never arrived are reported, although the sends are not awaited.
#[test]
fn messages_lost_at_the_end_are_reported() {
    run(|| async {
        let host = Host::new("soft0");
        for closes in [true, false] {
            let (client, server) = host.pair().await;
            // There is no receive for it.
            drop(client.send(host.buffer(b"lost")).post().await.unwrap());
            let end = async {
                if closes {
                    server.close().unwrap();
                }
                drop(server);
            };
            let (lost, ()) = tokio::join!(client.disconnect(HANG), end);
            let lost = lost.unwrap_err();
            assert!(lost.to_string().contains("did not arrive"), "{lost}");
        }
    });
}

/// A peer that is to end, but has outstanding sends without receives, does not keep other tasks from running.
#[test]
fn a_peer_that_cannot_end_does_not_block_other_tasks() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        let stuck = server.send(host.buffer(b"stuck")).post().await.unwrap();
        let late = client.disconnect(SHORT).await.unwrap_err();
        assert!(matches!(late, ConnectError::Timeout { limit: SHORT, .. }), "{late}");
        // The client's end makes the waiting send fail.
        assert_eq!(*stuck.await.unwrap_err().memory.unwrap(), *b"stuck");
        assert_eq!(server.closed(), Some(CloseReason::Disconnected));
    });
}

/// The same if the peer had left, or an operation had failed, before the call.
#[test]
fn messages_lost_before_the_end_are_reported() {
    run(|| async {
        let host = Host::new("soft0");
        for fails in [false, true] {
            let (client, server) = host.pair().await;
            if fails {
                let nowhere =
                    host.pd.allocate_shared_region(8, rdma_mem::AccessFlags::new()).unwrap();
                client.write(host.buffer(b"x"), nowhere.remote()).await.unwrap_err();
            } else {
                let receive = client.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
                drop(client.send(host.buffer(b"lost")).post().await.unwrap());
                drop(server);
                receive.await.unwrap_err();
            }
            let lost = client.disconnect(HANG).await.unwrap_err();
            assert!(lost.to_string().contains("did not arrive"), "{lost}");
        }
    });
}
