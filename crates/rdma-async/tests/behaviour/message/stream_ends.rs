//! Ends of streams: drops, resets, deaths, and peers that break the protocol.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use rdma_async::message::{Options, Stream};
use rdma_async::{Connection, Pool};
use rdma_qp::prelude::*;
use rdma_soft::{Builder, Network};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Builder as Runtime;
use tokio::time::{sleep, timeout};

use super::offers::returned;
use super::rig::{
    byte, check, connections, endpoint, fill, overwrite, stream_and_peer, streams, write_random,
};
use crate::common::host::Host;
use crate::common::{DEVICES, run, run_in_one_thread};

#[test]
fn listeners_report_that_their_runtime_has_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (streams, messages) = runtime.block_on(async {
        let (endpoint, options) = (endpoint("soft0"), Options::new());
        let streams = endpoint.listen_for_streams("127.0.0.1:0", options).await.unwrap();
        let messages = endpoint.listen_for_messages("127.0.0.1:0", options).await.unwrap();
        (streams, messages)
    });
    assert_eq!([streams.has_ended(), messages.has_ended()], [false; 2]);
    drop(runtime);
    assert_eq!([streams.has_ended(), messages.has_ended()], [true; 2]);
}

/// Writes until it fails. Returns the kind of the error.
async fn write_until_it_fails(stream: &mut Stream) -> ErrorKind {
    loop {
        if let Err(error) = stream.write_all(&[7; 1000]).await {
            return error.kind();
        }
    }
}

#[test]
fn a_dropped_stream_still_sends_what_was_written_and_ends_cleanly() {
    for device in DEVICES {
        run(move || async move {
            let (mut client, mut server) = streams(&endpoint(device), Options::new()).await;
            let total = 50_000;
            let writer = tokio::spawn(async move { write_random(&mut client, 9, total).await });
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(check(0, &all), total);
            writer.await.unwrap();
        });
    }
}

#[test]
fn a_dropped_reader_fails_the_writes_of_the_peer() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, mut server) = streams(&endpoint(device), Options::new()).await;
            server.write_all(b"unread").await.unwrap();
            drop(client);
            assert_eq!(write_until_it_fails(&mut server).await, ErrorKind::BrokenPipe);
            // The end of the client's stream was sent.
            assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_dropped_half_leaves_the_other_one_open() {
    run_in_one_thread(|| async {
        let (client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        let (reader, mut writer) = client.into_split();
        drop(reader);
        assert_eq!(write_until_it_fails(&mut server).await, ErrorKind::BrokenPipe);
        writer.write_all(b"still open").await.unwrap();
        let mut text = [0; 10];
        server.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"still open");
        drop(writer);
        assert_eq!(server.read(&mut text).await.unwrap(), 0);
    });
}

#[test]
fn a_dropped_writer_half_ends_the_stream_and_reads_on() {
    run_in_one_thread(|| async {
        let (client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        let (mut reader, writer) = client.into_split();
        drop(writer);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "answer");
    });
}

#[test]
fn a_stream_that_does_not_linger_resets_its_peer() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let at_once = Options::new().linger(Duration::ZERO);
            // The client's window is full, so its end cannot be sent.
            let at_once = at_once.receives(4).frame_bytes(256).window_bytes(1024);
            let (mut client, mut server) = streams(&endpoint(device), at_once).await;
            fill(&mut client).await;
            drop(client);
            let mut all = Vec::new();
            let cut_off = server.read_to_end(&mut all).await.unwrap_err();
            assert_eq!(cut_off.kind(), ErrorKind::ConnectionReset, "{cut_off}");
            assert!(!all.is_empty(), "what had arrived is read before the error");
            let error = server.write_all(b"late").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        });
    }
}

/// Virtual time, so that the peer neither reads nor sends until the time is over.
#[test]
fn a_dropped_stream_whose_peer_does_not_read_is_reset_after_its_linger() {
    let (network, linger) = (Network::simulated(12), Duration::from_secs(5));
    let names = ["linger-drops", "linger-reads"];
    for name in names {
        Builder::new(name).network(&network).install().unwrap();
    }
    network.block_on(async {
        let short = Options::new().receives(4).frame_bytes(256).window_bytes(1024).linger(linger);
        let hosts = names.map(Host::new);
        let [one, other] = hosts
            .each_ref()
            .map(|host| host.driver.prepare(short.fit(host.pd.create_qp())).unwrap());
        let (at_one, at_other) = (one.endpoint(), other.endpoint());
        let (one, other) = (one.handshake(at_other).unwrap(), other.handshake(at_one).unwrap());
        let [pool, others] = hosts.each_ref().map(|host| Pool::from(host.pool.clone()));
        let mut one = Stream::new(one, &pool, short).await.unwrap();
        let mut other = Stream::new(other, &others, short).await.unwrap();
        let mut sent = 0;
        let is_full = loop {
            let piece: Vec<u8> = (sent..sent + 100).map(byte).collect();
            match timeout(Duration::from_secs(1), one.write(&piece)).await {
                Ok(written) => sent += written.unwrap() as u64,
                Err(elapsed) => break elapsed,
            }
        };
        assert!(sent > 0, "{is_full}");
        drop(one);
        let step = Duration::from_millis(10);
        sleep(linger - step).await;
        assert!(pool.usage().buffers > 0, "reset too early");
        sleep(2 * step).await;
        assert_eq!(pool.usage().buffers, 0, "not reset");
        let mut all = Vec::new();
        let cut_off = other.read_to_end(&mut all).await.unwrap_err();
        assert_eq!(cut_off.kind(), ErrorKind::ConnectionReset, "{cut_off}");
        // All of it had arrived, but not the end.
        assert_eq!(check(0, &all), sent);
    });
}

#[test]
fn a_lost_connection_is_never_a_clean_end() {
    for device in DEVICES {
        run(move || async move {
            let host = Host::new(device);
            let pool = Pool::from(host.pool.clone());
            let options = Options::new();
            let qp = options.fit(host.pd.create_qp());
            let (listener, address) = {
                let listener = host.driver.listen("127.0.0.1:0", qp.clone()).await.unwrap();
                let address = listener.local_addr();
                (listener, address)
            };
            let (client, server) =
                tokio::join!(host.driver.connect(address, qp), listener.accept());
            let (client, server) = (client.unwrap().0, server.unwrap());
            let killed = server.clone();
            let (client, server) = tokio::join!(
                Stream::new(client, &pool, options),
                Stream::new(server, &pool, options)
            );
            let (mut client, mut server) = (client.unwrap(), server.unwrap());
            server.write_all(&[byte(0)]).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), byte(0));
            let waits = tokio::spawn(async move {
                let error = client.read_u8().await.unwrap_err();
                let late = client.shutdown().await.unwrap_err();
                (error.kind(), late.kind())
            });
            tokio::task::yield_now().await;
            killed.close().unwrap();
            let reset = ErrorKind::ConnectionReset;
            assert_eq!(waits.await.unwrap(), (reset, reset));
            let own = server.read_u8().await.unwrap_err();
            assert_eq!(own.kind(), reset);
        });
    }
}

#[test]
fn a_peer_that_sends_garbage_fails_only_its_own_stream() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let (mut victim, peer) = stream_and_peer(&host, Options::new()).await;
            let (mut one, mut other) = streams(&endpoint(device), Options::new()).await;
            post_receives(&host, &peer);
            peer.send(host.buffer(b"certainly not a frame")).await.unwrap();
            let error = victim.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            let error = victim.write_all(b"x").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            one.write_all(b"fine").await.unwrap();
            let mut text = [0; 4];
            other.read_exact(&mut text).await.unwrap();
            assert_eq!(&text, b"fine");
        });
    }
}

#[test]
fn a_peer_without_receives_cannot_keep_a_failed_stream_open() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let options = Options::new().linger(Duration::from_millis(1));
        let (mut victim, peer) = stream_and_peer(&host, options).await;
        // The stream's frames wait for receives of the peer without limit.
        peer.send(host.buffer(b"certainly not a frame")).await.unwrap();
        let error = victim.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    });
}

/// Otherwise the device would retry the last frame of the stream without limit.
#[test]
fn a_failed_stream_whose_runtime_has_ended_is_reset_at_once() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let options = Options::new().linger(Duration::MAX);
        let (one, peer) = connections(&host, options);
        let pool = Pool::from(host.pool.clone());
        let create = move || {
            let runtime = Runtime::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Stream::new(one, &pool, options)).unwrap()
        };
        let mut victim = tokio::task::spawn_blocking(create).await.unwrap();
        peer.send(host.buffer(b"certainly not a frame")).await.unwrap();
        let error = victim.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    });
}

/// Posts receives for the frames that a stream sends by itself.
fn post_receives(host: &Host, peer: &Connection) {
    for _ in 0..4 {
        drop(peer.receive(host.pool.allocate(4096).unwrap()).try_post().unwrap());
    }
}

#[test]
fn a_peer_that_writes_with_immediate_data_breaks_the_protocol() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let (mut victim, peer) = stream_and_peer(&host, Options::new()).await;
        post_receives(&host, &peer);
        peer.send_with_imm(host.pool.allocate(0).unwrap(), 1).await.unwrap();
        let error = victim.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    });
}

#[test]
fn short_queues_are_refused() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let (one, _other) = host.pair_by_hand();
        let pool = Pool::from(host.pool.clone());
        let error = Stream::new(one.clone(), &pool, Options::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("with `fit`"), "{error}");
        let error = Stream::new(one, &pool, Options::new().receives(0)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn all_memory_returns_to_the_pool() {
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            let (mut client, mut server) = streams(&endpoint, Options::new()).await;
            client.write_all(b"text").await.unwrap();
            let chunk = server.read_chunk().await.unwrap().unwrap();
            let ends = tokio::join!(client.shutdown(), server.shutdown());
            assert!(ends.0.is_ok() && ends.1.is_ok(), "{ends:?}");
            drop((client, server, chunk));
            while endpoint.pool().usage().buffers > 0 {
                tokio::task::yield_now().await;
            }
        });
    }
}

/// Another thread releases a chunk while the connection ends.
#[test]
fn kept_chunks_keep_only_their_own_memory_after_the_end() {
    for (linger, is_clean) in [(Duration::from_secs(5), true), (Duration::ZERO, false)] {
        for device in DEVICES {
            run(move || async move {
                let endpoint = endpoint(device);
                let options = Options::new().linger(linger);
                let (mut client, mut server) = streams(&endpoint, options).await;
                let mut chunks = Vec::new();
                for text in ["first", "second", "third"] {
                    client.write_all(text.as_bytes()).await.unwrap();
                    chunks.push(server.read_chunk().await.unwrap().unwrap());
                }
                client.write_all(b"unread").await.unwrap();
                if is_clean {
                    let ends = tokio::join!(client.shutdown(), server.shutdown());
                    assert!(ends.0.is_ok() && ends.1.is_ok(), "{ends:?}");
                }
                let third = chunks.pop();
                let releases = thread::spawn(move || drop(third));
                drop((client, server));
                releases.join().unwrap();
                returned(&endpoint, 2).await;
                let usage = endpoint.pool().usage();
                // Each chunk has a frame of 32 KiB.
                assert!(usage.buffers == 2 && usage.used_bytes < 66_000, "{usage:?}");
                overwrite(&endpoint).await;
                assert_eq!(*chunks[1], *b"second");
                // Its memory is freed although the other chunk keeps the session.
                drop(chunks.pop());
                returned(&endpoint, 1).await;
                assert_eq!(*chunks[0], *b"first");
                drop(chunks);
                returned(&endpoint, 0).await;
            });
        }
    }
}
