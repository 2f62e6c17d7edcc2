//! Receives that are posted ahead, in a ring of buffers.

use std::future::IntoFuture;

use rdma_async::prelude::*;
use rdma_channel::TransportError;
use rdma_mem::Buffer;
use rdma_qp::{MaxRnrRetries, WorkErrorCode};

use crate::common::polled_slowly;
use crate::operations::{DEVICES, HELD, Pair, run};

/// A pair whose sends fail at once if they find no receive.
fn impatient(device: &str) -> Pair {
    let retries = MaxRnrRetries::limited(0).unwrap();
    Pair::with(device, |builder| builder.max_rnr_retries(retries))
}

/// Returns that many buffers of 8 bytes.
fn buffers(pair: &Pair, count: usize) -> Vec<Buffer> {
    (0..count).map(|_| pair.buffer(&[0; 8])).collect()
}

#[test]
fn messages_arrive_in_order_in_reused_buffers() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let mut ring = pair.other.receive_ring(buffers(&pair, 3)).unwrap();
            let sends = async {
                for number in 0..50_u8 {
                    let bytes = vec![number; usize::from(number) % 8 + 1];
                    pair.one.send(pair.buffer(&bytes)).await.unwrap();
                }
            };
            let receives = async {
                for number in 0..50 {
                    let message = ring.next().await.unwrap();
                    assert_eq!(*message, *vec![number; usize::from(number) % 8 + 1], "{device}");
                    drop(message);
                    assert_eq!(ring.posted(), 3);
                }
            };
            tokio::join!(sends, receives);
            assert_eq!(pair.buffers(), 3);
        });
    }
}

#[test]
fn an_answer_finds_a_receive_that_was_posted_ahead() {
    for device in DEVICES {
        run(|| async move {
            let pair = impatient(device);
            let mut at_other = pair.other.receive_ring(buffers(&pair, 2)).unwrap();
            let mut at_one = pair.one.receive_ring(buffers(&pair, 1)).unwrap();
            let answers = async {
                for _ in 0..50 {
                    let message = at_other.next().await.unwrap();
                    let answer = pair.buffer(&message);
                    drop(message);
                    pair.other.send(answer).await.unwrap();
                }
            };
            let questions = async {
                for number in 0..50 {
                    pair.one.send(pair.buffer(&[number; 5])).await.unwrap();
                    assert_eq!(*at_one.next().await.unwrap(), [number; 5], "{device}");
                }
            };
            tokio::join!(answers, questions);
        });
    }
}

#[test]
fn a_dropped_wait_loses_no_message() {
    for device in DEVICES.into_iter().chain([HELD]) {
        run(|| async move {
            let pair = Pair::new(device);
            let mut ring = pair.other.receive_ring(buffers(&pair, 2)).unwrap();
            assert!(polled_slowly(3, ring.next()).await.is_none());
            assert_eq!(ring.posted(), 2);
            pair.released(pair.one.send(pair.buffer(b"late")).into_future()).await.unwrap();
            assert_eq!(*pair.released(ring.next()).await.unwrap(), *b"late", "{device}");
        });
    }
}

#[test]
fn a_taken_message_keeps_its_buffer_until_it_is_returned() {
    run(|| async {
        let pair = Pair::new("soft0");
        let mut ring = pair.other.receive_ring(buffers(&pair, 2)).unwrap();
        for text in [&b"one"[..], b"other"] {
            pair.one.send(pair.buffer(text)).await.unwrap();
        }
        let one = ring.next().await.unwrap().take();
        let other = ring.next().await.unwrap().take();
        assert_eq!((one.bytes(), other.bytes()), (&b"one"[..], &b"other"[..]));
        let none = ring.next().await.unwrap_err();
        assert!(matches!(none, TransportError::WouldBlock), "no buffer is left: {none}");
        ring.give_back(other.memory);
        pair.one.send_with_imm(pair.buffer(b"third"), 9).await.unwrap();
        let message = ring.next().await.unwrap();
        assert_eq!((&message[..], message.immediate()), (&b"third"[..], Some(9)));
        drop(message);
        ring.give_back(one.memory);
        assert_eq!(ring.posted(), 2);
    });
}

#[test]
fn a_write_with_immediate_data_has_no_bytes_in_the_ring() {
    run(|| async {
        let pair = Pair::new("soft0");
        let mut ring = pair.other.receive_ring(buffers(&pair, 1)).unwrap();
        let written = pair.one.write_with_imm(pair.buffer(&[7; 64]), pair.board.remote(), 9);
        written.await.unwrap();
        let message = ring.next().await.unwrap();
        assert_eq!((message.len(), message.immediate()), (0, Some(9)));
        assert_eq!(message.take().length, 64);
    });
}

#[test]
fn a_ring_larger_than_the_queue_is_refused_and_a_full_one_continues() {
    run(|| async {
        let pair = Pair::with("soft0", |builder| builder.max_recv_wr(1));
        let error = pair.other.receive_ring(buffers(&pair, 2)).unwrap_err();
        assert!(matches!(error, TransportError::WouldBlock), "{error}");
        // A receive that was posted matches the next message, like one of a dropped ring.
        pair.one.send(pair.buffer(b"lost")).await.unwrap();
        let lost = loop {
            match pair.other.take_unclaimed() {
                Some(lost) => break lost,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!(lost.memory.unwrap()[..4], *b"lost");
        let mut ring = pair.other.receive_ring(buffers(&pair, 1)).unwrap();
        pair.one.send(pair.buffer(b"first")).await.unwrap();
        let message = ring.next().await.unwrap();
        let own = pair.other.receive_imm().post().await.unwrap();
        drop(message);
        let full = ring.next().await.unwrap_err();
        assert!(matches!(full, TransportError::WouldBlock), "{full}");
        pair.one.send_with_imm(pair.buffer(b""), 3).await.unwrap();
        assert_eq!(own.await.unwrap(), Some(3));
        let (sent, received) =
            tokio::join!(pair.one.send(pair.buffer(b"second")).into_future(), ring.next());
        sent.unwrap();
        assert_eq!(*received.unwrap(), *b"second");
    });
}

#[test]
fn a_message_longer_than_its_buffer_loses_no_buffer() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let mut ring = pair.other.receive_ring(buffers(&pair, 2)).unwrap();
            let (sent, received) =
                tokio::join!(pair.one.send(pair.buffer(&[1; 9])).into_future(), ring.next());
            drop(sent.unwrap_err());
            let TransportError::WorkError(failed) = received.unwrap_err() else { panic!() };
            assert_eq!(failed.error.code(), WorkErrorCode::LocalLengthError, "{device}");
            ring.next().await.unwrap_err(); // flushed
            let closed = ring.next().await.unwrap_err();
            assert!(matches!(closed, TransportError::Closed { .. }), "{device}: {closed}");
            assert_eq!(pair.buffers(), 2);
        });
    }
}

#[test]
fn a_ring_can_hold_parts_of_buffers() {
    run(|| async {
        let pair = Pair::new("soft0");
        let rooms = [pair.buffer(&[1; 8]).slice(2..6), pair.buffer(&[2; 8]).slice(0..4)];
        let mut ring = pair.other.receive_ring(rooms).unwrap();
        pair.one.send(pair.buffer(b"room")).await.unwrap();
        let message = ring.next().await.unwrap();
        assert_eq!(*message, *b"room");
        assert_eq!(*message.take().memory.into_inner(), *b"\x01\x01room\x01\x01");
    });
}
