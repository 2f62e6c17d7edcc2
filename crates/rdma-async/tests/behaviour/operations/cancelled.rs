//! Operations that are not awaited.

use rdma_async::prelude::*;

use crate::operations::{DEVICES, Pair, poll_once, run};

#[test]
fn an_operation_that_was_not_posted_releases_its_memory_at_once() {
    run(|| async {
        let pair = Pair::new("soft0");
        let op = pair.one.send(pair.buffer(&[1; 8]));
        assert_eq!(pair.buffers(), 1);
        drop(op);
        assert_eq!(pair.buffers(), 0);
        drop(pair.one.send(pair.buffer(&[1; 8])).post());
        assert_eq!(pair.buffers(), 0);
    });
}

#[test]
fn a_dropped_send_is_sent_and_releases_its_memory_on_completion() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let receive = pair.other.receive(pair.buffer(&[0; 8])).post().await.unwrap();
            drop(pair.one.send(pair.buffer(b"a letter")).post().await.unwrap());
            assert_eq!(*receive.await.unwrap().memory, *b"a letter");
            // The next poll processes its completion.
            while pair.buffers() > 0 {
                pair.one
                    .read(pair.buffer(&[0; 8]), pair.board.remote().slice(0..8).unwrap())
                    .await
                    .unwrap();
                tokio::task::yield_now().await;
            }
        });
    }
}

#[test]
fn a_message_for_a_dropped_receive_is_kept_in_order() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let mut posted = Vec::new();
            for _ in 0..3 {
                posted.push(
                    pair.other.receive(pair.buffer(&[0; 8]).slice(2..6)).post().await.unwrap(),
                );
            }
            let kept = posted.remove(1);
            drop(posted);
            for text in [b"one_", b"two_", b"tri_"] {
                pair.one.send_with_imm(pair.buffer(text), 4).await.unwrap();
            }
            assert_eq!(*kept.await.unwrap().memory, *b"two_");
            let mut texts = Vec::new();
            while texts.len() < 2 {
                match pair.other.take_unclaimed() {
                    Some(received) => {
                        assert_eq!((received.length, received.immediate), (4, Some(4)));
                        let memory = received.memory.unwrap();
                        assert_eq!(memory.range(), 2..6);
                        texts.push(memory.to_vec());
                    }
                    None => tokio::task::yield_now().await,
                }
            }
            assert_eq!(texts, [b"one_", b"tri_"]);
            assert!(pair.other.take_unclaimed().is_none());
            assert_eq!(pair.buffers(), 0);
        });
    }
}

/// Tests each number of polls.
#[test]
fn an_operation_is_dropped_after_any_number_of_polls() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::with(device, |builder| builder.max_send_wr(2).max_recv_wr(2));
            let remote = pair.board.remote().slice(0..8).unwrap();
            for polls in 0..6 {
                for _ in 0..8 {
                    let mut read =
                        Box::pin(pair.one.read(pair.buffer(&[0; 8]), remote).into_future());
                    for _ in 0..polls {
                        if poll_once(&mut read).is_ready() {
                            break;
                        }
                    }
                }
            }
            // All slots are free again, and all memory was returned.
            for _ in 0..4 {
                pair.one.read(pair.buffer(&[0; 8]), remote).await.unwrap();
            }
            while pair.buffers() > 0 {
                pair.one.fetch_add(remote, 0).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
    }
}

#[test]
fn a_forgotten_operation_keeps_its_slot_and_nothing_else() {
    run(|| async {
        let pair = Pair::with("soft0", |builder| builder.max_send_wr(2));
        let remote = pair.board.remote().slice(0..8).unwrap();
        #[allow(clippy::mem_forget)] // this is the test
        std::mem::forget(pair.one.write(pair.buffer(&[1; 8]), remote).post().await.unwrap());
        for _ in 0..4 {
            pair.one.write(pair.buffer(&[2; 8]), remote).await.unwrap();
        }
        let buffers = {
            let Pair { one, other, driver, pool, .. } = pair;
            drop((one, other));
            driver.shutdown().await;
            pool.usage().buffers
        };
        assert_eq!(buffers, 0, "the end of the connection releases it");
    });
}
