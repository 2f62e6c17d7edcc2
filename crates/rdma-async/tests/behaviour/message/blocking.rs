//! A blocking end and an asynchronous one.

use std::io::{Read as _, Write as _};

use rdma_async::message::{Messages, Options, Stream};
use rdma_channel::message as blocking;
use rdma_channel::prelude::*;
use rdma_mem::{BufferPool, ProtectionDomain, open_device};
use tokio::io::AsyncReadExt as _;
use tokio::task::spawn_blocking;

use super::rig::{check, endpoint, message, short, write_random};
use crate::common::{DEVICES, run};

const ANY: &str = "127.0.0.1:0";

/// Some lengths: of single frames, of many, and of messages that are lent.
const LENGTHS: [usize; 7] = [0, 8, 32 << 10, 100_000, 300_000, 3 << 20, 5];

fn domain(device: &str) -> (ProtectionDomain, BufferPool) {
    let pd = open_device(device).unwrap().allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    (pd, pool)
}

/// Both ends of a connection for messages. The blocking end is the client or the server.
async fn messages(
    device: &'static str,
    options: Options,
    is_client: bool,
) -> (blocking::Messages, Messages) {
    let endpoint = endpoint(device);
    let (pd, pool) = domain(device);
    if is_client {
        let listener = endpoint.listen_for_messages(ANY, options).await.unwrap();
        let address = listener.local_addr();
        let client =
            spawn_blocking(move || pd.create_channel().connect_messages(address, &pool, options));
        let server = listener.accept().await.unwrap();
        (client.await.unwrap().unwrap(), server)
    } else {
        let mut listener = pd.create_channel().listen_for_messages(ANY, &pool, options).unwrap();
        let address = listener.local_addr();
        let server = spawn_blocking(move || listener.accept());
        let client = endpoint.connect_messages(address, options).await.unwrap();
        (server.await.unwrap().unwrap(), client)
    }
}

/// Both ends of a stream. The blocking end is the client or the server.
async fn streams(
    device: &'static str,
    options: Options,
    is_client: bool,
) -> (blocking::Stream, Stream) {
    let endpoint = endpoint(device);
    let (pd, pool) = domain(device);
    if is_client {
        let listener = endpoint.listen_for_streams(ANY, options).await.unwrap();
        let address = listener.local_addr();
        let client =
            spawn_blocking(move || pd.create_channel().connect_stream(address, &pool, options));
        let server = listener.accept().await.unwrap();
        (client.await.unwrap().unwrap(), server)
    } else {
        let mut listener = pd.create_channel().listen_for_streams(ANY, &pool, options).unwrap();
        let address = listener.local_addr();
        let server = spawn_blocking(move || listener.accept());
        let client = endpoint.connect_stream(address, options).await.unwrap();
        (server.await.unwrap().unwrap(), client)
    }
}

/// Runs a test on each device, with the blocking end as the client and as the server.
fn on_each<F: Future<Output = ()> + Send + 'static>(test: impl Fn(&'static str, bool) -> F) {
    for device in DEVICES {
        for is_client in [true, false] {
            run(|| test(device, is_client));
        }
    }
}

#[test]
fn messages_pass_in_both_directions() {
    for device in DEVICES {
        for (options, is_client) in
            [(Options::new(), true), (Options::new(), false), (short(), true)]
        {
            run(move || async move {
                let (blocking, other) = messages(device, options, is_client).await;
                let talk = spawn_blocking(move || {
                    for length in LENGTHS {
                        blocking.send(&message(length)).unwrap();
                        let received = blocking.receive().unwrap().unwrap();
                        assert!(*received == message(length)[..], "{length}");
                    }
                    blocking.finish().unwrap();
                    assert!(blocking.receive().unwrap().is_none());
                });
                for length in LENGTHS {
                    let received = other.receive().await.unwrap().unwrap();
                    assert!(*received == message(length)[..], "{length}");
                    other.send(&message(length)).await.unwrap();
                }
                other.finish().await.unwrap();
                assert!(other.receive().await.unwrap().is_none());
                talk.await.unwrap();
            });
        }
    }
}

#[test]
fn each_end_calls_the_other() {
    on_each(|device, is_client| async move {
        let (blocking, other) = messages(device, Options::new(), is_client).await;
        let talk = spawn_blocking(move || {
            for length in LENGTHS {
                let answer = blocking.call(&message(length)).unwrap();
                assert!(*answer == message(length)[..], "{length}");
            }
            while let Some(request) = blocking.receive().unwrap() {
                let answer = request.to_vec();
                request.reply(&answer).unwrap();
            }
            blocking.finish().unwrap();
        });
        for _ in LENGTHS {
            let request = other.receive().await.unwrap().unwrap();
            let answer = request.to_vec();
            request.reply(&answer).await.unwrap();
        }
        for length in LENGTHS {
            let answer = other.call(&message(length)).await.unwrap();
            assert!(*answer == message(length)[..], "{length}");
        }
        other.finish().await.unwrap();
        assert!(other.receive().await.unwrap().is_none());
        talk.await.unwrap();
    });
}

#[test]
fn a_lent_buffer_arrives_as_a_buffer() {
    on_each(|device, is_client| async move {
        let (blocking, other) = messages(device, Options::new(), is_client).await;
        let endpoint = endpoint(device);
        let mut buffer = endpoint.allocate(1 << 20).await.unwrap();
        buffer.copy_from_slice(&message(1 << 20));
        let receives = spawn_blocking(move || {
            let received = blocking.receive().unwrap().unwrap().into_buffer().unwrap();
            assert!(*received == message(1 << 20)[..]);
            // What has arrived is lent to the peer in turn.
            blocking.send_buffer(received).unwrap();
        });
        other.send_buffer(buffer).await.unwrap();
        let received = other.receive().await.unwrap().unwrap().into_buffer().await.unwrap();
        assert!(*received == message(1 << 20)[..]);
        receives.await.unwrap();
    });
}

#[test]
fn bytes_pass_in_both_directions() {
    for device in DEVICES {
        for (options, is_client) in [(Options::new(), true), (short(), false)] {
            run(move || async move {
                let (blocking, other) = streams(device, options, is_client).await;
                let (mut blocking_reader, mut blocking_writer) = blocking.into_split();
                let (mut reader, mut writer) = other.into_split();
                let total = 60_000;
                let echo = spawn_blocking(move || {
                    std::io::copy(&mut blocking_reader, &mut blocking_writer).unwrap();
                    blocking_writer.shutdown().unwrap();
                    assert_eq!(blocking_reader.read(&mut [0; 8]).unwrap(), 0);
                });
                let writes = async {
                    write_random(&mut writer, 3, total).await;
                    tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
                };
                let mut all = Vec::new();
                let (read, ()) = tokio::join!(reader.read_to_end(&mut all), writes);
                assert_eq!(read.unwrap() as u64, total);
                assert_eq!(check(0, &all), total);
                echo.await.unwrap();
            });
        }
    }
}

#[test]
fn a_blocking_end_that_is_dropped_ends_cleanly() {
    on_each(|device, is_client| async move {
        let (mut blocking, mut other) = streams(device, Options::new(), is_client).await;
        spawn_blocking(move || blocking.write_all(&message(10_000)).unwrap()).await.unwrap();
        let mut all = Vec::new();
        other.read_to_end(&mut all).await.unwrap();
        assert!(all == message(10_000));
    });
}
