//! Streams carry bytes in order, in any pieces, and wait for a slow reader.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;

use rdma_async::message::{Chunk, Options, Stream};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, copy};

use super::rig::{byte, check, endpoint, fill, short, streams, write_random};
use crate::common::chance::Chance;
use crate::common::{DEVICES, poll_once, run, run_in_one_thread};

/// Reads to the end in pieces of random lengths. Returns the number of bytes.
async fn read_random(stream: &mut (impl tokio::io::AsyncRead + Unpin), seed: u64) -> u64 {
    let (mut chance, mut at) = (Chance(seed), 0);
    loop {
        let mut piece = vec![0; usize::try_from(1 + chance.below(20_000)).unwrap()];
        let count = stream.read(&mut piece).await.unwrap();
        if count == 0 {
            return at;
        }
        at = check(at, &piece[..count]);
    }
}

#[test]
fn an_echo_of_random_pieces_arrives_in_order() {
    for device in DEVICES {
        for options in [Options::new(), short()] {
            run(move || async move {
                let (client, server) = streams(&endpoint(device), options).await;
                let echo = tokio::spawn(async move {
                    let (mut reader, mut writer) = server.into_split();
                    copy(&mut reader, &mut writer).await.unwrap();
                    writer.shutdown().await.unwrap();
                });
                let (mut reader, mut writer) = client.into_split();
                let total = 100_000;
                let write = async {
                    write_random(&mut writer, 1, total).await;
                    writer.shutdown().await.unwrap();
                };
                let ((), read) = tokio::join!(write, read_random(&mut reader, 2));
                assert_eq!(read, total);
                echo.await.unwrap();
            });
        }
    }
}

#[test]
fn both_ends_write_at_once_before_they_read() {
    run(|| async {
        let (mut one, mut other) = streams(&endpoint("soft0"), short()).await;
        let talk = |stream: Stream, seed| async move {
            let (mut reader, mut writer) = stream.into_split();
            let write = async {
                write_random(&mut writer, seed, 30_000).await;
                writer.shutdown().await.unwrap();
            };
            assert_eq!(tokio::join!(write, read_random(&mut reader, seed)).1, 30_000);
        };
        // What fits is written before either end reads.
        one.write_all(&[byte(0)]).await.unwrap();
        other.write_all(&[byte(0)]).await.unwrap();
        assert_eq!(
            (one.read_u8().await.unwrap(), other.read_u8().await.unwrap()),
            (byte(0), byte(0))
        );
        tokio::join!(talk(one, 3), talk(other, 4));
    });
}

#[test]
fn a_half_close_leaves_the_other_direction_open() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (mut client, mut server) = streams(&endpoint(device), Options::new()).await;
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut question = String::new();
            server.read_to_string(&mut question).await.unwrap();
            assert_eq!(question, "question");
            // The end stays the end.
            assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
            server.write_all(&[7; 100_000]).await.unwrap();
            let mut answer = vec![0; 100_000];
            client.read_exact(&mut answer).await.unwrap();
            assert!(answer.iter().all(|&byte| byte == 7));
            server.shutdown().await.unwrap();
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
            let late = client.write_all(b"late").await.unwrap_err();
            assert_eq!(late.kind(), std::io::ErrorKind::BrokenPipe, "{late}");
        });
    }
}

#[test]
fn shutdown_does_not_wait_for_the_reader() {
    run_in_one_thread(|| async {
        let (mut client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        // The server posts its first frame when it is created, so the client is open without a call of the server.
        client.write_all(b"all").await.unwrap();
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"all");
    });
}

#[test]
fn chunks_are_not_overwritten_whatever_the_order_in_which_they_are_dropped() {
    for device in DEVICES {
        run(move || async move {
            let (mut client, mut server) = streams(&endpoint(device), short()).await;
            let total = 60_000;
            let writer = tokio::spawn(async move {
                write_random(&mut client, 5, total).await;
                client.shutdown().await.unwrap();
            });
            let (mut chance, mut kept, mut at) = (Chance(6), VecDeque::new(), 0);
            while let Some(chunk) = server.read_chunk().await.unwrap() {
                let end = check(at, &chunk);
                kept.push_back((at, chunk));
                at = end;
                // At most three of four receives are kept, so the writer continues.
                while kept.len() > usize::try_from(chance.below(4)).unwrap() {
                    let chosen = usize::try_from(chance.below(kept.len() as u64)).unwrap();
                    let (at, chunk) = kept.swap_remove_back(chosen).unwrap();
                    check(at, &chunk);
                }
            }
            assert_eq!(at, total);
            writer.await.unwrap();
            drop(server);
            // Chunks outlive their stream.
            for (at, chunk) in kept {
                check(at, &chunk);
            }
        });
    }
}

#[test]
fn chunks_may_be_dropped_by_other_tasks() {
    for device in DEVICES {
        run(move || async move {
            let (mut client, mut server) = streams(&endpoint(device), short()).await;
            let total = 60_000;
            let writer = tokio::spawn(async move {
                write_random(&mut client, 10, total).await;
                client.shutdown().await.unwrap();
            });
            let (keep, mut kept) = tokio::sync::mpsc::channel::<Chunk>(2);
            let dropper = tokio::spawn(async move {
                let mut at = 0;
                while let Some(chunk) = kept.recv().await {
                    at = check(at, &chunk);
                }
                at
            });
            while let Some(chunk) = server.read_chunk().await.unwrap() {
                keep.send(chunk).await.unwrap();
            }
            drop((keep, server));
            assert_eq!(dropper.await.unwrap(), total);
            writer.await.unwrap();
        });
    }
}

#[test]
fn a_chunk_begins_after_the_bytes_that_were_read() {
    run_in_one_thread(|| async {
        let (mut client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        client.write_all(b"head and body").await.unwrap();
        let mut head = [0; 5];
        server.read_exact(&mut head).await.unwrap();
        let chunk = server.read_chunk().await.unwrap().unwrap();
        assert_eq!((&head, &*chunk), (b"head ", &b"and body"[..]));
        client.write_all(b"a line\nanother\n").await.unwrap();
        let mut line = String::new();
        server.read_line(&mut line).await.unwrap();
        assert_eq!(line, "a line\n");
        assert_eq!(server.fill_buf().await.unwrap(), b"another\n");
    });
}

#[test]
fn a_reader_that_waits_stops_the_writer() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (mut client, mut server) = streams(&endpoint(device), short()).await;
            // The server reads nothing, so the client can write only what the server's receives hold.
            let accepted = fill(&mut client).await;
            assert!((100..=1024).contains(&accepted), "{accepted}");
            // It continues when the server reads.
            let write = async {
                let rest: Vec<u8> = (accepted..10_000).map(byte).collect();
                client.write_all(&rest).await.unwrap();
                client.shutdown().await.unwrap();
            };
            assert_eq!(tokio::join!(write, read_random(&mut server, 7)).1, 10_000);
        });
    }
}

#[test]
fn bytes_that_were_read_exactly_leave_memory_for_the_next_ones_and_the_end() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let smallest = Options::new().receives(1).sends(5).frame_bytes(64).window_bytes(128);
            let (mut client, mut server) = streams(&endpoint(device), smallest).await;
            for _ in 0..20 {
                client.write_all(b"question").await.unwrap();
                let mut question = [0; 8];
                server.read_exact(&mut question).await.unwrap();
            }
            client.shutdown().await.unwrap();
        });
    }
}

#[test]
fn a_write_all_that_is_dropped_has_written_a_prefix() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (mut client, mut server) = streams(&endpoint(device), short()).await;
            // Afterwards, the client knows the credit of the server.
            client.write_all(&[byte(0)]).await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), byte(0));
            // More than the server has memory for.
            let all: Vec<u8> = (1..10_000).map(byte).collect();
            let mut writes = Box::pin(client.write_all(&all));
            for _ in 0..20 {
                assert!(poll_once(&mut writes).is_pending());
                tokio::task::yield_now().await;
            }
            drop(writes);
            let mut found = Vec::new();
            let (shut, read) = tokio::join!(client.shutdown(), server.read_to_end(&mut found));
            shut.unwrap();
            read.unwrap();
            assert!((1..all.len()).contains(&found.len()), "{}", found.len());
            check(1, &found);
        });
    }
}

#[test]
fn a_vectored_write_sends_all_slices_in_order() {
    run_in_one_thread(|| async {
        let (mut client, mut server) = streams(&endpoint("soft0"), short()).await;
        let pieces: Vec<Vec<u8>> = [(0, 0), (0, 10), (10, 10), (10, 700), (700, 701), (701, 2000)]
            .map(|(from, to)| (from..to).map(byte).collect())
            .into();
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut slices = &mut slices[..];
        assert!(tokio::io::AsyncWrite::is_write_vectored(&client));
        let write = async {
            while slices.iter().any(|slice| !slice.is_empty()) {
                let written = client.write_vectored(slices).await.unwrap();
                assert!(written > 0);
                IoSlice::advance_slices(&mut slices, written);
            }
            client.shutdown().await.unwrap();
        };
        assert_eq!(tokio::join!(write, read_random(&mut server, 8)).1, 2000);
    });
}

#[test]
fn a_read_that_is_dropped_loses_nothing() {
    run_in_one_thread(|| async {
        let (mut client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        assert!(poll_once(&mut pin!(server.read_chunk())).is_pending());
        client.write_all(b"kept").await.unwrap();
        assert_eq!(&*server.read_chunk().await.unwrap().unwrap(), b"kept");
    });
}

#[test]
fn halves_of_one_task_do_not_wake_each_other_forever() {
    run_in_one_thread(|| async {
        let (client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        let (mut reader, mut writer) = client.into_split();
        let mut polls = 0;
        // The reader waits; the writer works.
        let reads = poll_fn(|cx| {
            polls += 1;
            reader.poll_read_chunk(cx)
        });
        let writes = async {
            for _ in 0..100 {
                writer.write_all(b"some").await.unwrap();
                server.read_chunk().await.unwrap().unwrap();
                tokio::task::yield_now().await;
            }
            drop(server);
        };
        let (read, ()) = tokio::join!(reads, writes);
        assert!(read.unwrap().is_none());
        // `join!` polls both whenever one is woken: 100 yields, and a few events.
        assert!(polls < 200, "{polls}");
    });
}

#[test]
fn the_address_of_the_peer_is_that_of_the_control_connection() {
    run_in_one_thread(|| async {
        let endpoint = endpoint("soft0");
        let listener = endpoint.listen_for_streams("127.0.0.1:0", Options::new()).await.unwrap();
        let client = endpoint.connect_stream(listener.local_addr(), Options::new());
        let (client, server) = tokio::join!(client, listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr());
        assert!(server.peer_addr().unwrap().ip().is_loopback());
        let (reader, writer) = client.into_split();
        assert_eq!(reader.peer_addr().unwrap(), writer.peer_addr().unwrap());
    });
}
