//! Both ends of a stream.

use std::pin::pin;
use std::task::Poll;

use rdma_async::message::{Messages, Options, Stream};
use rdma_async::{Connection, Endpoint, Pool};
use rdma_mem::open_device;
use tokio::io::AsyncWrite;
use tokio::io::AsyncWriteExt as _;

use crate::common::chance::Chance;
use crate::common::host::Host;
use crate::common::{install, poll_once};

pub(super) fn endpoint(device: &str) -> Endpoint {
    install();
    Endpoint::new(&open_device(device).unwrap()).unwrap()
}

/// Short queues and frames, so that a small test uses every slot many times, and most messages need many parts.
pub(super) fn short() -> Options {
    Options::new().receives(4).sends(6).frame_bytes(256).window_bytes(1024)
}

/// Both ends of a stream that was made by an address: the client's and the server's.
pub(super) async fn streams(endpoint: &Endpoint, options: Options) -> (Stream, Stream) {
    let listener = endpoint.listen_for_streams("127.0.0.1:0", options).await.unwrap();
    let client = endpoint.connect_stream(listener.local_addr(), options);
    tokio::try_join!(client, listener.accept()).unwrap()
}

/// Two plain connections whose queues are long enough for a stream.
pub(super) fn connections(host: &Host, options: Options) -> (Connection, Connection) {
    let prepare =
        || host.driver.prepare(options.fit(rdma_qp::QueuePair::builder(&host.pd))).unwrap();
    let (one, other) = (prepare(), prepare());
    let (at_one, at_other) = (one.endpoint(), other.endpoint());
    (one.handshake(at_other).unwrap(), other.handshake(at_one).unwrap())
}

/// A stream whose peer is a plain connection with that many receives.
pub(super) async fn stream_and_peer(host: &Host, options: Options) -> (Stream, Connection) {
    let (one, other) = connections(host, options);
    let pool = Pool::from(host.pool.clone());
    (Stream::new(one, &pool, options).await.unwrap(), other)
}

/// Writes until the peer has no memory left. Returns the number of bytes.
pub(super) async fn fill(stream: &mut Stream) -> u64 {
    let (mut accepted, mut refused) = (0, 0);
    // Other tasks and the device run between the attempts.
    while refused < 100 {
        let piece: Vec<u8> = (accepted..accepted + 100).map(byte).collect();
        match poll_once(&mut pin!(stream.write(&piece))) {
            Poll::Ready(written) => {
                accepted += written.unwrap() as u64;
                refused = 0;
            }
            Poll::Pending => refused += 1,
        }
        tokio::task::yield_now().await;
    }
    accepted
}

/// The byte of a stream at this place.
pub(super) fn byte(at: u64) -> u8 {
    (Chance(at / 8).next() >> (at % 8 * 8)).to_le_bytes()[0]
}

/// Writes this many bytes in pieces of random lengths.
pub(super) async fn write_random(writer: &mut (impl AsyncWrite + Unpin), seed: u64, total: u64) {
    let (mut chance, mut at) = (Chance(seed), 0);
    while at < total {
        let most = 2 << chance.below(16);
        let length = (1 + chance.below(most)).min(total - at);
        let piece: Vec<u8> = (at..at + length).map(byte).collect();
        writer.write_all(&piece).await.unwrap();
        at += length;
    }
}

/// Checks the bytes of a stream from this place on. Returns the place after them.
pub(super) fn check(at: u64, bytes: &[u8]) -> u64 {
    for (place, &found) in (at..).zip(bytes) {
        assert_eq!(found, byte(place), "at {place}");
    }
    at + bytes.len() as u64
}

/// Both ends of a connection for messages that was made by an address: the client's and the server's.
pub(super) async fn messages(endpoint: &Endpoint, options: Options) -> (Messages, Messages) {
    let listener = endpoint.listen_for_messages("127.0.0.1:0", options).await.unwrap();
    let client = endpoint.connect_messages(listener.local_addr(), options);
    tokio::try_join!(client, listener.accept()).unwrap()
}

/// A message of this length.
pub(super) fn message(length: usize) -> Vec<u8> {
    (0..length as u64).map(byte).collect()
}

/// Overwrites memory that the pool has free.
pub(super) async fn overwrite(endpoint: &Endpoint) {
    let mut free = Vec::new();
    for _ in 0..100 {
        let mut buffer = endpoint.allocate(32 << 10).await.unwrap();
        buffer.fill(0xee);
        free.push(buffer);
    }
}
