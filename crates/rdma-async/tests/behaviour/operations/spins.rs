//! Operations whose completion queue is polled for a time before they sleep.

use std::time::Duration;

use rdma_async::CloseReason;
use rdma_channel::TransportError;
use rdma_mem::RemoteMemoryRegion;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::common::provider::{ALWAYS, Call};
use crate::operations::{DEVICES, HELD, Pair, run};

/// Longer than any test.
const LONG: Duration = Duration::MAX;

#[test]
fn busy_polling_returns_the_same_outcomes_as_awaiting() {
    for device in DEVICES {
        for limit in [Duration::ZERO, Duration::from_micros(20), LONG] {
            run(|| async move {
                let pair = Pair::new(device);
                let receive = pair.other.receive(pair.buffer(&[0; 8])).post().await.unwrap();
                let sent = pair.one.send(pair.buffer(b"message")).busy_poll(limit).await.unwrap();
                assert_eq!(*sent, *b"message");
                let received = receive.busy_poll(limit).await.unwrap();
                assert_eq!(received.memory[..received.length], *b"message");
                let word = pair.board.remote().slice(0..8).unwrap();
                assert_eq!(pair.one.fetch_add(word, 7).busy_poll(limit).await.unwrap(), 0);
                assert_eq!(pair.one.fetch_add(word, 1).await.unwrap(), 7);
                let beyond = RemoteMemoryRegion::new(word.address(), 8, 0);
                let failed =
                    pair.one.write(pair.buffer(b"refused!"), beyond).busy_poll(limit).await;
                let failed = failed.unwrap_err();
                assert!(matches!(failed.error, TransportError::WorkError(_)), "{failed}");
                assert_eq!(**failed.memory.as_ref().unwrap(), *b"refused!");
            });
        }
    }
}

/// The task that sends the answer runs meanwhile, in the same thread.
#[test]
fn a_spinning_task_lets_others_run() {
    run(|| async {
        let pair = Pair::new("soft0");
        for _ in 0..100 {
            let receive = pair.other.receive(pair.buffer(&[0; 4])).post().await.unwrap();
            let answers = async {
                for _ in 0..10 {
                    yield_now().await;
                }
                pair.one.send(pair.buffer(b"late")).await.unwrap();
            };
            let (received, ()) = tokio::join!(receive.busy_poll(LONG), answers);
            assert_eq!(*received.unwrap().memory, *b"late");
        }
    });
}

/// A task whose operations complete at once must also yield.
#[test]
fn a_task_that_never_waits_lets_others_run() {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    current.block_on(async {
        let pair = Pair::new("soft0");
        let other = tokio::spawn(async {});
        for _ in 0..100_000 {
            if other.is_finished() {
                return;
            }
            let word = pair.board.remote().slice(0..8).unwrap();
            let posted = pair.one.fetch_add(word, 1).try_post().unwrap();
            posted.busy_poll(LONG).await.unwrap();
        }
        panic!("the other task never ran");
    });
}

#[test]
fn a_completion_found_while_spinning_needs_no_event() {
    run(|| async {
        let (pair, provider) = Pair::faulty(HELD);
        provider.refuse(Call::RequestEvent, ALWAYS);
        let write =
            pair.one.write(pair.buffer(b"the word"), pair.board.remote().slice(0..8).unwrap());
        let write = write.try_post().unwrap();
        assert_eq!(*pair.released(write.busy_poll(LONG)).await.unwrap(), *b"the word");
        assert_eq!(pair.one.closed(), None);
        // A zero limit would make it sleep.
        let receive = pair.one.receive(pair.buffer(&[1; 8])).try_post().unwrap();
        let failed = receive.busy_poll(Duration::ZERO).await.unwrap_err();
        assert_eq!(
            (pair.one.closed(), &*failed.memory.unwrap()),
            (Some(CloseReason::Poll), &[1; 8][..])
        );
        provider.assert_kept();
    });
}

#[test]
fn a_spinning_task_learns_of_every_end() {
    for fails in [false, true] {
        run(move || async move {
            let (pair, provider) = Pair::faulty(HELD);
            let receive = pair.one.receive(pair.buffer(&[1; 8])).post().await.unwrap();
            let ends = async {
                yield_now().await;
                if fails {
                    provider.refuse(Call::Poll, ALWAYS);
                } else {
                    pair.one.close().unwrap();
                }
            };
            let (failed, ()) = tokio::join!(receive.busy_poll(LONG), ends);
            let failed = failed.unwrap_err();
            let reason = if fails { CloseReason::Poll } else { CloseReason::Asked };
            assert!(
                matches!(failed.error, TransportError::Closed { reason: why, .. } if why == reason),
                "{failed}"
            );
            assert_eq!(**failed.memory.as_ref().unwrap(), [1; 8]);
            drop(failed);
            assert_eq!((pair.buffers(), provider.lent()), (0, 0));
        });
    }
}

#[test]
fn a_future_dropped_while_spinning_leaves_its_memory_with_the_request() {
    run(|| async {
        let (pair, provider) = Pair::faulty(HELD);
        let receive = pair.other.receive(pair.buffer(&[1; 8])).post().await.unwrap();
        timeout(Duration::from_millis(1), receive.busy_poll(LONG)).await.unwrap_err();
        assert_eq!((pair.buffers(), provider.lent()), (1, 1));
        pair.released(pair.one.send(pair.buffer(b"for it")).busy_poll(LONG)).await.unwrap();
        let received = loop {
            match pair.other.take_unclaimed() {
                Some(received) => break received,
                None => yield_now().await,
            }
        };
        assert_eq!(received.memory.as_ref().unwrap()[..received.length], *b"for it");
        drop(received);
        pair.assert_given_back().await;
    });
}
