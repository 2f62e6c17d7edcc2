//! Operations that are awaited.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};

use rdma_async::prelude::*;
use rdma_async::{Connection, Posted, Write};
use rdma_channel::TransportError;
use rdma_mem::{Buffer, RemoteMemoryRegion};
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use crate::operations::{DEVICES, HANG, Pair, poll_once, run};

#[test]
fn messages_arrive_with_their_length_and_number() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            for length in [0, 1, 63, 64] {
                let into = pair.pool.allocate(64).unwrap();
                let receive = pair.other.receive(into).post().await.unwrap();
                let message = pair.buffer(&vec![7; length.max(1)]).slice(0..length);
                let back = pair.one.send_with_imm(message, 9).await.unwrap();
                assert_eq!(back.len(), length, "the memory is returned");
                let received = receive.await.unwrap();
                assert_eq!((received.length, received.immediate), (length, Some(9)));
                assert!(received.memory[..length].iter().all(|&byte| byte == 7));
            }
            let receive = pair.other.receive(pair.buffer(&[0; 8])).post().await.unwrap();
            pair.one.send(pair.buffer(b"plain")).await.unwrap();
            let received = receive.await.unwrap();
            assert_eq!((&received.memory[..5], received.immediate), (&b"plain"[..], None));
        });
    }
}

#[test]
fn memory_is_written_and_read() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let remote = pair.board.remote().slice(8..16).unwrap();
            let word = pair.one.write(pair.buffer(b"the word"), remote).await.unwrap();
            assert_eq!(*word, *b"the word");
            let mut bytes = [0; 8];
            pair.board.read(8, &mut bytes).unwrap();
            assert_eq!(&bytes, b"the word");
            let read = pair.one.read(pair.buffer(&[0; 8]), remote).await.unwrap();
            assert_eq!(*read, *b"the word");
            // A read into a part of a buffer, which returns the whole buffer.
            let part = pair.buffer(&[1; 24]).slice(8..16);
            let part = pair.one.read(part, remote).await.unwrap();
            let whole = part.into_inner();
            assert_eq!(
                (&whole[..8], &whole[8..16], &whole[16..]),
                (&[1; 8][..], &b"the word"[..], &[1; 8][..])
            );
            // An empty write.
            pair.one
                .write(pair.buffer(&[1]).slice(0..0), remote.slice(0..0).unwrap())
                .await
                .unwrap();
            pair.one
                .read(pair.buffer(&[1]).slice(0..0), remote.slice(0..0).unwrap())
                .await
                .unwrap();
        });
    }
}

#[test]
fn a_write_with_immediate_data_is_received() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let told = pair.other.receive_imm().post().await.unwrap();
            let remote = pair.board.remote().slice(0..4).unwrap();
            pair.one.write_with_imm(pair.buffer(b"1234"), remote, 77).await.unwrap();
            assert_eq!(told.await.unwrap(), Some(77));
        });
    }
}

#[test]
fn atomic_operations_return_the_old_value() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let word = pair.board.remote().slice(0..8).unwrap();
            assert_eq!(pair.one.fetch_add(word, 5).await.unwrap(), 0);
            assert_eq!(pair.one.compare_and_swap(word, 5, 100).await.unwrap(), 5);
            assert_eq!(pair.one.compare_and_swap(word, 5, 200).await.unwrap(), 100);
            // Each of several outstanding operations has its own word.
            let posted = [
                pair.one.fetch_add(word, 1).post().await.unwrap(),
                pair.one.fetch_add(word, 1).post().await.unwrap(),
                pair.one.fetch_add(word, 1).post().await.unwrap(),
            ];
            let mut were = Vec::new();
            for one in posted {
                were.push(one.await.unwrap());
            }
            assert_eq!(were, [100, 101, 102]);
        });
    }
}

#[test]
fn one_source_is_sent_to_several() {
    for device in DEVICES {
        run(|| async move {
            let (pair, second) = (Pair::new(device), Pair::new(device));
            // Each device has its own domain, so each has its own data, shared by its operations.
            for pair in [&pair, &second] {
                let data = pair.buffer(b"to all").freeze();
                let mut receives = Vec::new();
                for _ in 0..3 {
                    receives.push(pair.other.receive(pair.buffer(&[0; 8])).post().await.unwrap());
                }
                let mut sends = Vec::new();
                for _ in 0..3 {
                    sends.push(pair.one.send(data.clone()).post().await.unwrap());
                }
                let data = data.try_thaw().unwrap_err();
                for send in sends {
                    drop(send.await.unwrap());
                }
                assert_eq!(*data.try_thaw().unwrap(), *b"to all");
                for receive in receives {
                    assert_eq!(&receive.await.unwrap().memory[..6], b"to all");
                }
            }
        });
    }
}

/// A struct with a connection and its outstanding operations.
struct Pipeline {
    connection: Connection,
    pending: VecDeque<Posted<'static, Write<Buffer>>>,
}

impl Pipeline {
    async fn push(
        &mut self,
        buffer: Buffer,
        to: RemoteMemoryRegion,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.pending.len() >= 4 {
            self.pending.pop_front().unwrap().await?;
        }
        let op = self.connection.write(buffer, to).into_owned(&self.connection);
        self.pending.push_back(op.post().await?);
        Ok(())
    }
}

#[test]
fn operations_are_kept_in_a_struct() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let mut pipeline = Pipeline { connection: pair.one.clone(), pending: VecDeque::new() };
            for n in 0..40_usize {
                let to = pair.board.remote().slice(8 * n..8 * n + 8).unwrap();
                pipeline.push(pair.buffer(&n.to_ne_bytes()), to).await.unwrap();
            }
            for pending in pipeline.pending.drain(..) {
                pending.await.unwrap();
            }
            for n in 0..40_usize {
                let mut bytes = [0; 8];
                pair.board.read(8 * n, &mut bytes).unwrap();
                assert_eq!(usize::from_ne_bytes(bytes), n);
            }
        });
    }
}

/// Polling again is a mistake of the caller. It panics, and does not affect other operations.
#[test]
fn polling_a_finished_operation_panics_without_side_effects() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let foreign = Pair::new(device);
            let receive = || pair.other.receive(pair.buffer(&[1; 8])).try_post().unwrap();
            let send = || pair.one.send(pair.buffer(&[2; 8]));
            let (first, second) = (receive(), receive());
            twice(pin!(send().into_future())).await.unwrap();
            twice(pin!(first)).await.unwrap();
            drop(twice(pin!(send().post())).await.unwrap());
            twice(pin!(second)).await.unwrap();
            // An operation that fails before it is posted.
            let refused = || pair.one.send(foreign.buffer(&[3; 8]));
            twice(pin!(refused().into_future())).await.unwrap_err();
            drop(twice(pin!(refused().post())).await.unwrap_err());
            pair.assert_given_back().await;
            pair.assert_works().await;
        });
    }
}

/// Awaits the future, polls it again, and returns its output.
async fn twice<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let outcome = timeout(HANG, &mut future).await.unwrap();
    // Works in any state of the task's budget.
    let again = unconstrained(async {
        catch_unwind(AssertUnwindSafe(|| poll_once(&mut future).is_ready())).is_err()
    });
    assert!(again.await, "it must panic when it is polled again");
    outcome
}

#[test]
fn many_tasks_use_one_connection() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..40_usize {
                let (connection, buffer) = (pair.one.clone(), pair.buffer(&[1; 8]));
                let at = pair.board.remote().slice(8 * task..8 * task + 8).unwrap();
                tasks.spawn(async move {
                    let mut buffer = buffer;
                    for round in 0..10_u64 {
                        buffer.copy_from_slice(&round.to_ne_bytes());
                        buffer = connection.write(buffer, at).await?;
                        buffer.fill(0xff);
                        buffer = connection.read(buffer, at).await?;
                        assert_eq!(*buffer, round.to_ne_bytes());
                    }
                    Ok::<_, TransportError>(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap().unwrap();
            }
            assert_eq!(pair.buffers(), 0);
        });
    }
}

/// Each end sleeps until the other one has sent: a lost wake-up would hang. `RDMA_TEST_ROUNDS` sets the number of
/// rounds.
#[test]
fn sleeping_tasks_exchange_messages() {
    let rounds = std::env::var("RDMA_TEST_ROUNDS").ok();
    let rounds = rounds.map_or(500, |rounds| rounds.parse::<u32>().unwrap());
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let player = |own: rdma_async::Connection, begins: bool| {
                let (mut into, mut from) = (pair.buffer(&[0; 8]), pair.buffer(&[1; 8]));
                async move {
                    let mut receive = own.receive(into).post().await.unwrap();
                    if begins {
                        from = own.send(from).await.unwrap();
                    }
                    for round in 1..=rounds {
                        into = receive.await.unwrap().memory;
                        receive = own.receive(into).post().await.unwrap();
                        if !begins || round < rounds {
                            from = own.send(from).await.unwrap();
                        }
                    }
                }
            };
            let here = tokio::spawn(player(pair.one.clone(), true));
            let there = tokio::spawn(player(pair.other.clone(), false));
            here.await.unwrap();
            there.await.unwrap();
        });
    }
}
