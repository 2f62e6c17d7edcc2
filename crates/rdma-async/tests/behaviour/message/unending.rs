//! Peers that begin a message and do not end it.

use std::pin::pin;

use rdma_async::message::{ConnectionError, MessageError, Messages};
use rdma_message::frame::{Body, CloseReason, FrameError, Role};
use tokio::task::yield_now;

use super::offer_peers::{Peer, ends, options};
use super::rig::{endpoint, message, messages};
use crate::common::host::Host;
use crate::common::{DEVICES, poll_once, run_in_one_thread};

/// The bytes that a peer may send before the program has taken some.
const WINDOW: u32 = 4096;
const LENGTH: u32 = 3000;

fn first(length: u32) -> Body {
    Body::First { role: Role::Message, length }
}

/// Sends a message from one end to the other.
async fn exchange((one, other): (&Messages, &Messages)) {
    let bytes = message(3000);
    let (sent, received) = tokio::join!(one.send(&bytes), other.receive());
    sent.unwrap();
    assert!(*received.unwrap().unwrap() == bytes[..]);
}

#[test]
fn a_message_that_is_never_continued_holds_little_memory_and_no_other_connection() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let (fine, other) = messages(&endpoint(device), options()).await;
            let (end, connection) = ends(&host, options().window_bytes(WINDOW)).await;
            let peer = Peer::new(&host, &connection).await;
            let mut receive = pin!(end.receive());
            assert!(poll_once(&mut receive).is_pending());
            let before = host.pool.usage().used_bytes;
            // The peer states 64 MiB, and sends 900 bytes.
            peer.send_part(first(64 << 20), &[7; 900]).await;
            while host.pool.usage().used_bytes == before {
                assert!(poll_once(&mut receive).is_pending());
                yield_now().await;
            }
            let held = host.pool.usage().used_bytes - before;
            assert!(held <= WINDOW as usize, "{held} bytes");
            exchange((&fine, &other)).await;
            assert!(poll_once(&mut receive).is_pending());
            drop(peer);
            drop(connection);
            let error = receive.await.unwrap_err();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
            exchange((&fine, &other)).await;
        });
    }
}

#[test]
fn a_message_that_is_continued_wrongly_or_without_end_fails_only_its_own_connection() {
    let overrun = ConnectionError::Overrun { payload: 900, missing: LENGTH % 900 };
    let cases = [
        // More than the peer has stated.
        (Body::Rest, 900, overrun),
        // Nothing at all.
        (Body::Rest, 0, ConnectionError::Frame(FrameError::Empty(0x13))),
        // The next message.
        (first(LENGTH), 900, ConnectionError::Interrupted),
    ];
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let (fine, other) = messages(&endpoint(device), options()).await;
            for (body, payload, expected) in cases {
                let (end, connection) = ends(&host, options().max_message(LENGTH)).await;
                let mut peer = Peer::new(&host, &connection).await;
                let sends = async {
                    peer.send_part(first(LENGTH), &[7; 900]).await;
                    for _ in 0..10 {
                        peer.send_part(body, &vec![7; payload]).await;
                    }
                    assert_eq!(peer.closed().await, CloseReason::PROTOCOL);
                };
                let ((), received) = tokio::join!(sends, end.receive());
                let error = received.unwrap_err();
                let is_expected = matches!(error, MessageError::Ended(error) if error == expected);
                assert!(is_expected, "{error}");
                exchange((&fine, &other)).await;
            }
        });
    }
}
