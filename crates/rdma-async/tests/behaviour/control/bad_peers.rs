//! Peers that connect, and then send invalid frames.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use rdma_async::{CloseReason, ConnectError, Connection, TransportError};
use rdma_qp::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::peer::{ENDPOINT, Peer, handshake, head, offer, pair, pair_with};
use crate::control::{Host, run};

#[test]
fn a_peer_that_sends_invalid_frames_is_disconnected() {
    run(|| async {
        let host = Host::new("soft0");
        let endpoint = host.driver.prepare(host.pd.create_qp()).unwrap().endpoint();
        let mut broken = offer(1, 1, &endpoint);
        broken[12 + 4] = 9;
        let strangers = (1..=65).flat_map(|number| offer(number, number, &endpoint)).collect();
        let bad: [(&str, Vec<u8>); 7] = [
            ("something else", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
            ("an unknown kind", head(99, 0, 0)),
            ("a wrong length", b"\0\x04\xff\xff\0\0\0\0\0\0\0\0".to_vec()),
            ("a frame of a server", [head(2, 0, 1), endpoint.to_bytes().to_vec()].concat()),
            ("a broken endpoint", broken),
            ("too many strangers", strangers),
            ("half of a frame", b"\0\x04\0".to_vec()),
        ];
        for (what, bytes) in bad {
            let (mut peer, server) = pair(&host).await;
            let receive = server.receive(host.pool.allocate(8).unwrap()).post().await.unwrap();
            peer.say(&bytes).await;
            if what == "half of a frame" {
                host.talk(&server, &peer.connection, b"so far").await;
                peer.stream.shutdown().await.unwrap();
            }
            let failed = receive.await.unwrap_err();
            let gone = match what {
                "half of a frame" => CloseReason::Died,
                _ => CloseReason::PeerFailed,
            };
            let is_gone =
                matches!(failed.error, TransportError::Closed { reason, .. } if reason == gone);
            assert!(is_gone, "{what}: {failed}");
        }
    });
}

/// Frames about unknown connections change nothing, and neither does a flood of them.
#[test]
fn frames_about_unknown_connections_change_nothing() {
    run(|| async {
        let host = Host::new("soft0");
        let (mut peer, server) = pair(&host).await;
        let endpoint = host.driver.prepare(host.pd.create_qp()).unwrap().endpoint();
        let mut bytes = Vec::new();
        for number in [0, 1, u32::MAX] {
            for epoch in [1, 7, u32::MAX] {
                // READY, FINISH and ENDED for unknown connections, and ALIVE.
                for kind in [3, 5, 7, 4] {
                    // The end of a later queue pair also ends an earlier one.
                    if kind != 4 || number != 0 {
                        bytes.extend(head(kind, number, epoch));
                    }
                }
            }
        }
        for number in 1..1000 {
            bytes.extend(offer(number, number, &endpoint));
            bytes.extend(head(4, number, number));
        }
        bytes.extend(head(6, 0, 0).repeat(100_000));
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() {
            // It does not read the answers, so the server may stop reading for a time.
            let said = poll_fn(|cx| {
                let said = pin!(peer.stream.write(bytes)).as_mut().poll(cx);
                std::task::Poll::Ready(said)
            });
            match said.await {
                std::task::Poll::Ready(count) => bytes = &bytes[count.unwrap()..],
                std::task::Poll::Pending => tokio::task::yield_now().await,
            }
        }
        host.talk(&peer.connection, &server, b"as before").await;
        assert_eq!((server.closed(), server.epoch()), (None, 0));
        // Many beats get one answer.
        assert_eq!(peer.hear().await.0, 7);
        drop(peer);
        server.receive_imm().await.unwrap_err();
    });
}

/// Offers a queue pair for a connection, and connects it when the server answers.
async fn offered(host: &Host, peer: &mut Peer, number: u32, epoch: u32) -> Connection {
    let offered = host.driver.prepare(host.pd.create_qp()).unwrap();
    peer.say(&offer(number, epoch, &offered.endpoint())).await;
    loop {
        let (kind, answered, endpoint) = peer.hear().await;
        if (kind, answered) == (2, epoch) {
            break handshake(offered, &endpoint);
        }
    }
}

/// A client that offers a queue pair, but neither completes nor withdraws it. On a busy machine, each step may need
/// several attempts, because the server's attempt may time out earlier.
#[test]
fn an_abandoned_offer_times_out() {
    run(|| async {
        let host = Host::new("soft0");
        let options = host.options().rendezvous_timeout(Duration::from_secs(2));
        let (mut peer, server) = pair_with(&host, options).await;
        let mut epochs = 5..;
        for is_withdrawn in [true, false] {
            for epoch in epochs.by_ref() {
                let mut abandons = pin!(async {
                    drop(offered(&host, &mut peer, 0, epoch).await);
                    if is_withdrawn {
                        peer.say(&head(4, 0, epoch)).await;
                    }
                });
                let mut reconnected = pin!(server.reconnect());
                let (late, is_answered) = tokio::select! {
                    () = &mut abandons => (reconnected.await, true),
                    late = &mut reconnected => (late, false),
                };
                let late = late.unwrap_err();
                assert!(matches!(late, ConnectError::Timeout { .. }), "{late}");
                if is_answered {
                    break;
                }
            }
        }
        // The server does not answer an offer that is withdrawn or too old. Then the client completes one.
        for number in epochs.skip(2) {
            let mut complete = pin!(async {
                let connected = offered(&host, &mut peer, 0, number).await;
                peer.say(&head(3, 0, number)).await;
                connected
            });
            let mut reconnected = pin!(server.reconnect());
            let (epoch, connected) = tokio::select! {
                connected = &mut complete => (reconnected.await, Some(connected)),
                epoch = &mut reconnected => (epoch, None),
            };
            if let Err(ConnectError::Timeout { .. }) = epoch {
                continue;
            }
            assert_eq!((epoch.unwrap(), server.epoch()), (number, number));
            let connected = match connected {
                Some(connected) => connected,
                None => complete.await,
            };
            host.talk(&connected, &server, b"at last").await;
            break;
        }
    });
}

/// A client whose new queue pair or stream ends immediately after READY.
#[test]
fn an_end_right_after_ready_is_noticed() {
    run(|| async {
        let host = Host::new("soft0");
        for (number, leaves) in [(0, false), (0, true), (3, false), (3, true)] {
            let (mut peer, server) = pair(&host).await;
            let reconnect = async {
                match number {
                    0 => server.reconnect().await.map(|_| server.clone()),
                    _ => server.connect_additional(number, host.pd.create_qp()).await,
                }
            };
            let (again, connected) = tokio::join!(reconnect, async {
                let connected = offered(&host, &mut peer, number, 1).await;
                let last = if leaves { Vec::new() } else { head(4, number, 1) };
                peer.say(&[head(3, number, 1), last].concat()).await;
                if leaves {
                    peer.stream.shutdown().await.unwrap();
                }
                connected
            });
            if let Ok(again) = again {
                let failed = again.receive(host.pool.allocate(8).unwrap()).await.unwrap_err();
                let reason = if leaves { CloseReason::Died } else { CloseReason::PeerFailed };
                assert!(failed.to_string().contains(&reason.to_string()), "{failed}");
            }
            drop((connected, peer));
        }
    });
}

/// A server that ends a queue pair that was not offered is disconnected. Otherwise the client would keep offering.
#[test]
fn a_server_that_ends_an_unoffered_queue_pair_is_disconnected() {
    run(|| async {
        let host = Host::new("soft0");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let prepared = host.driver.prepare(host.pd.create_qp()).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 10 + ENDPOINT];
            stream.read_exact(&mut hello).await.unwrap();
            let told = prepared.endpoint();
            let connected = handshake(prepared, &hello[10..]);
            let answer = [b"RDRV\0\x02\0\x02\0\0".as_slice(), &told.to_bytes()].concat();
            stream.write_all(&answer).await.unwrap();
            stream.read_exact(&mut [0; 10]).await.unwrap();
            stream.write_all(b"RDRV\0\x02\x03\x04\0\0").await.unwrap();
            stream.write_all(&head(4, 0, u32::MAX)).await.unwrap();
            (stream, connected)
        };
        let connect = host.driver.connect(address, host.options());
        let (client, server) = tokio::join!(connect, server);
        let client = client.unwrap().0;
        let failed = client.receive_imm().await.unwrap_err();
        assert!(failed.to_string().contains("the peer's end has failed"), "{failed}");
        let gone = client.reconnect().await.unwrap_err();
        assert!(matches!(gone, ConnectError::Closed { .. }), "{gone}");
        drop(server);
    });
}
