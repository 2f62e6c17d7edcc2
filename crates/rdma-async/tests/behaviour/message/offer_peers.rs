//! Peers that handle offers by hand: they fetch late or never, die, or break the protocol.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rdma_async::message::{ConnectionError, MessageError, Messages, OperationError, Options};
use rdma_async::{Connection, Pool, ReceiveRing};
use rdma_mem::{AccessFlags, Buffer, RemoteMemoryRegion, SharedRegion};
use rdma_message::frame::{Body, CloseReason, Frame, Hello, Limits, Mode, Remote, Role};
use rdma_qp::prelude::*;
use tokio::task::yield_now;

use super::rig::{message, messages};
use crate::common::host::Host;
use crate::common::{DEVICES, all, poll_once, run_in_one_thread};

/// The length of frames. Messages of more than that are lent.
const FRAME: u32 = 1024;

pub(super) fn options() -> Options {
    Options::new().frame_bytes(FRAME).eager_bytes(FRAME).linger(Duration::from_millis(100))
}

/// The connections of an end under test, and of its peer.
pub(super) async fn connections(host: &Host, options: Options) -> (Connection, Connection) {
    connections_between(host, host, options).await
}

/// Like [`connections`], with the peer on another host.
pub(super) async fn connections_between(
    host: &Host,
    peer: &Host,
    options: Options,
) -> (Connection, Connection) {
    let qp = options.fit(host.pd.create_qp().access(all()));
    let of_peer = options.fit(peer.pd.create_qp().access(all())).max_recv_wr(64).max_send_wr(64);
    let listener = peer.driver.listen("127.0.0.1:0", of_peer).await.unwrap();
    let connect = host.driver.connect(listener.local_addr(), qp);
    let (one, peer) = tokio::join!(connect, listener.accept());
    (one.unwrap().0, peer.unwrap())
}

/// Both ends of a connection: the end under test, and a plain connection.
pub(super) async fn ends(host: &Host, options: Options) -> (Messages, Connection) {
    let (one, peer) = connections(host, options).await;
    let end = Messages::new(one, &Pool::from(host.pool.clone()), options).await.unwrap();
    (end, peer)
}

/// A peer that knows the frames.
pub(super) struct Peer<'p> {
    host: &'p Host,
    connection: &'p Connection,
    ring: ReceiveRing<'p, Buffer>,
    pub(super) limits: Limits,
}

impl<'p> Peer<'p> {
    /// Posts receives and sends the hello for messages.
    pub(super) async fn new(host: &'p Host, connection: &'p Connection) -> Self {
        Self::of(Mode::Messages, host, connection).await
    }

    /// Posts receives and sends the hello of this kind.
    pub(super) async fn of(mode: Mode, host: &'p Host, connection: &'p Connection) -> Self {
        let buffers = (0..32).map(|_| host.pool.allocate(FRAME as usize).unwrap());
        let ring = connection.receive_ring(buffers).unwrap();
        let limits = Limits { receives: 16, bytes: 1 << 20, fetched: 0 };
        let this = Self { host, connection, ring, limits };
        this.send(Body::Hello(Hello {
            version: Hello::VERSION,
            mode,
            fetches: true,
            receive_bytes: FRAME,
            max_message: 64 << 20,
            calls: 4,
        }))
        .await;
        this
    }

    pub(super) async fn send(&self, body: Body) {
        self.send_part(body, &[]).await;
    }

    /// Sends a frame with a part of a message.
    pub(super) async fn send_part(&self, body: Body, part: &[u8]) {
        let header = Frame::new(self.limits, body).encode();
        // The end under test may have closed the connection.
        let _ = self.connection.send(self.host.buffer(&[header.as_bytes(), part].concat())).await;
    }

    async fn frame(&mut self) -> Body {
        Frame::decode(&self.ring.next().await.unwrap()).unwrap().0.body
    }

    /// Waits for an offer.
    async fn offer(&mut self) -> (Remote, u32) {
        loop {
            if let Body::Offer { length, source, .. } = self.frame().await {
                return (source, length);
            }
        }
    }

    /// Waits for the close frame.
    pub(super) async fn closed(&mut self) -> CloseReason {
        loop {
            if let Body::Close(reason) = self.frame().await {
                return reason;
            }
        }
    }

    async fn read(&self, source: Remote, length: u32) -> Option<Buffer> {
        let remote = RemoteMemoryRegion::new(source.va, length as usize, source.rkey);
        let into = self.host.pool.allocate(length as usize).unwrap();
        self.connection.read(into, remote).await.ok()
    }

    /// States that one more message was fetched.
    async fn count(&mut self) {
        self.limits.fetched = self.limits.fetched.wrapping_add(1);
        self.send(Body::Credit).await;
    }
}

#[test]
fn an_offer_can_be_read_until_it_is_counted() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let (end, connection) = ends(&host, options()).await;
            let mut peer = Peer::new(&host, &connection).await;
            let bytes = message(200_000);
            let sent = async {
                end.send(&bytes).await.unwrap();
                end
            };
            let fetches = async {
                let (source, length) = peer.offer().await;
                for _ in 0..3 {
                    assert!(*peer.read(source, length).await.unwrap() == message(200_000)[..]);
                }
                peer.count().await;
                source
            };
            host.pool.grow(1 << 20).unwrap();
            let (end, source) = tokio::join!(sent, fetches);
            // A late READ fails, and ends the connection.
            let (late, ended) = tokio::join!(
                async {
                    // The invalidation is posted when the count was processed.
                    while host.pool.usage().used_bytes > 150_000 {
                        yield_now().await;
                    }
                    peer.read(source, 8).await
                },
                end.receive()
            );
            assert!(late.is_none());
            assert!(matches!(ended, Err(MessageError::Ended(ConnectionError::Lost))), "{ended:?}");
        });
    }
}

/// The last offer waits until one of the others is counted, and is never counted itself.
#[test]
fn a_long_message_is_posted_when_its_offer_is_sent() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            host.pool.grow(1 << 20).unwrap();
            let (end, connection) = ends(&host, options()).await;
            let mut peer = Peer::new(&host, &connection).await;
            // In a task of its own, so that nothing but its waker runs it.
            let posts = tokio::spawn(async move {
                for _ in 0..9 {
                    end.post(&message(3000)).await.unwrap();
                }
                end
            });
            for _ in 0..8 {
                peer.offer().await;
            }
            peer.count().await;
            peer.offer().await;
            posts.await.unwrap();
        });
    }
}

#[test]
fn the_send_queue_has_room_to_end_all_leases_while_frames_wait_for_receives() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            host.pool.grow(8 << 20).unwrap();
            let (end, connection) = ends(&host, options()).await;
            let mut peer = Peer::new(&host, &connection).await;
            peer.limits.receives = 1000;
            peer.send(Body::Credit).await;
            let end = Arc::new(end);
            let lends: Vec<_> = (0..8)
                .map(|_| {
                    let (end, buffer) = (Arc::clone(&end), host.buffer(&message(3000)));
                    tokio::spawn(async move { end.send_buffer(buffer).await })
                })
                .collect();
            for _ in 0..8 {
                peer.offer().await;
            }
            // The peer has 32 receives. Further frames stay in the send queue, up to the last slot for data.
            for _ in 0..32 + 13 {
                end.post(b"short").await.unwrap();
            }
            let mut waits = pin!(end.post(b"short"));
            for _ in 0..50 {
                assert!(poll_once(&mut waits).is_pending());
                yield_now().await;
            }
            peer.limits.fetched = 8;
            peer.send(Body::Credit).await;
            for lent in lends {
                lent.await.unwrap().unwrap();
            }
            for _ in 0..32 + 13 {
                while !matches!(peer.frame().await, Body::First { .. }) {}
            }
            waits.await.unwrap();
        });
    }
}

#[test]
fn a_send_that_is_dropped_before_its_offer_offers_nothing() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            host.pool.grow(8 << 20).unwrap();
            let (end, connection) = ends(&host, options().offer_bytes(1)).await;
            let mut peer = Peer::new(&host, &connection).await;
            let [one, two, last] = [3000, 4000, 5000].map(message);
            let mut offered = Box::pin(end.send_buffer(host.buffer(&one)));
            let source = loop {
                assert!(poll_once(&mut offered).is_pending());
                if let Poll::Ready(offer) = poll_once(&mut pin!(peer.offer())) {
                    break offer;
                }
                yield_now().await;
            };
            // This end offers one message at a time.
            let mut waits = Box::pin(end.send_buffer(host.buffer(&two)));
            for _ in 0..50 {
                assert!(poll_once(&mut waits).is_pending());
                yield_now().await;
            }
            drop(waits);
            // The first one was offered, so it stays readable.
            drop(offered);
            let mut third = Box::pin(end.send_buffer(host.buffer(&last)));
            assert!(poll_once(&mut third).is_pending());
            assert!(*peer.read(source.0, source.1).await.unwrap() == one[..]);
            peer.count().await;
            let fetches = async {
                let (source, length) = peer.offer().await;
                assert!(*peer.read(source, length).await.unwrap() == last[..]);
                peer.count().await;
            };
            let (sent, ()) = tokio::join!(third, fetches);
            sent.unwrap();
        });
    }
}

#[test]
fn a_peer_that_dies_with_offers_leaves_them_unknown() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            host.pool.grow(8 << 20).unwrap();
            let (end, connection) = ends(&host, options().offer_bytes(1)).await;
            let mut peer = Peer::new(&host, &connection).await;
            let (one, two) = (message(3000), message(4000));
            let dies = async {
                peer.offer().await;
                drop(peer);
                connection.close().unwrap();
            };
            let (offered, waits, ()) = tokio::join!(end.send(&one), end.send(&two), dies);
            let [offered, waits] = [offered, waits].map(Result::unwrap_err).map(|error| {
                let MessageError::Operation { error, .. } = error else { panic!("{error}") };
                error
            });
            assert_eq!([offered, waits], [OperationError::Unknown, OperationError::NotSent]);
            drop((end, connection));
            while host.pool.usage().buffers > 0 {
                yield_now().await;
            }
        });
    }
}

#[test]
fn a_wrong_count_ends_the_connection() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            for offers in [0, 1] {
                let host = Host::new(device);
                host.pool.grow(8 << 20).unwrap();
                let (end, connection) = ends(&host, options()).await;
                let mut peer = Peer::new(&host, &connection).await;
                let bytes = message(5000);
                let lies = async {
                    if offers == 1 {
                        peer.offer().await;
                    }
                    peer.limits.fetched = offers + 1;
                    peer.send(Body::Credit).await;
                    assert_eq!(peer.closed().await, CloseReason::CREDIT);
                };
                let sends = async {
                    if offers == 1 {
                        let error = end.send(&bytes).await.unwrap_err();
                        assert!(matches!(error, MessageError::Operation { .. }), "{error}");
                    }
                    let error = end.receive().await.unwrap_err();
                    let MessageError::Ended(ConnectionError::Fetched { reported, offered }) = error
                    else {
                        panic!("{error}")
                    };
                    assert_eq!((reported, offered), (offers + 1, offers));
                };
                tokio::join!(lies, sends);
            }
        });
    }
}

/// Memory that the peer lends to the end under test.
fn lent(host: &Host, length: usize) -> SharedRegion {
    let access = AccessFlags::new().with_local_write().with_remote_read();
    let region = host.pd.allocate_shared_region(length, access).unwrap();
    region.write(0, &message(length)).unwrap();
    region
}

fn offer(region: &SharedRegion, length: u32) -> Body {
    let remote = region.remote();
    let source = Remote { va: remote.address(), rkey: remote.rkey() };
    Body::Offer { role: Role::Message, length, source }
}

#[test]
fn an_offer_is_fetched_and_counted() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let (end, connection) = ends(&host, options()).await;
            let mut peer = Peer::new(&host, &connection).await;
            let memory = lent(&host, 6 << 20);
            // Its pool has to grow.
            peer.send(offer(&memory, 6 << 20)).await;
            let received = end.receive().await.unwrap().unwrap();
            assert!(*received == message(6 << 20)[..]);
            loop {
                let message = peer.ring.next().await.unwrap();
                if Frame::decode(&message).unwrap().0.limits.fetched == 1 {
                    break;
                }
            }
        });
    }
}

#[test]
fn an_offer_of_wrong_memory_ends_only_its_connection() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let endpoint = super::rig::endpoint(device);
            let (fine, other) = messages(&endpoint, options()).await;
            let memory = lent(&host, 8192);
            let Body::Offer { role, length, source } = offer(&memory, 4096) else { panic!() };
            let wrongs = [
                (length, Remote { rkey: rdma_mem::Rkey::new(0x1234), ..source }),
                (length, Remote { va: source.va.wrapping_sub(1 << 30), ..source }),
                (length, Remote { va: u64::MAX, ..source }),
                (8193, source),
            ];
            for (length, source) in wrongs {
                let (end, connection) = ends(&host, options()).await;
                let peer = Peer::new(&host, &connection).await;
                peer.send(Body::Offer { role, length, source }).await;
                let error = end.receive().await.unwrap_err();
                assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
            }
            let bytes = message(3000);
            let (sent, received) = tokio::join!(fine.send(&bytes), other.receive());
            assert!(sent.is_ok() && received.unwrap().unwrap().len() == 3000);
        });
    }
}

#[test]
fn offers_beyond_the_limits_end_the_connection() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let memory = lent(&host, 4096);
            // Longer than this end accepts.
            let (end, connection) = ends(&host, options().max_message(4000)).await;
            let mut peer = Peer::new(&host, &connection).await;
            peer.send(offer(&memory, 4001)).await;
            let error = end.receive().await.unwrap_err();
            let too_long = ConnectionError::TooLong { length: 4001, limit: 4000 };
            assert!(matches!(error, MessageError::Ended(error) if error == too_long), "{error}");
            assert_eq!(peer.closed().await, CloseReason::TOO_LONG);
            // This end does not fetch.
            let (end, connection) = ends(&host, options().fetch_bytes(0)).await;
            let mut peer = Peer::new(&host, &connection).await;
            peer.send(offer(&memory, 4000)).await;
            let error = end.receive().await.unwrap_err();
            let unexpected = ConnectionError::Unexpected;
            assert!(matches!(error, MessageError::Ended(error) if error == unexpected), "{error}");
            assert_eq!(peer.closed().await, CloseReason::PROTOCOL);
        });
    }
}

#[test]
fn more_offers_than_credit_end_the_connection() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let memory = lent(&host, 4096);
            let (end, connection) = ends(&host, options().receives(40).window_bytes(2048)).await;
            let peer = Peer::new(&host, &connection).await;
            // The program takes none, so their frames keep their credit.
            let floods = async {
                for _ in 0..100 {
                    peer.send(offer(&memory, 4096)).await;
                }
            };
            let ended = async {
                // The peer has no credit for many, so one of them waits.
                while end.send(b"a note").await.is_ok() {
                    yield_now().await;
                }
                loop {
                    if let Err(error) = end.receive().await {
                        break error;
                    }
                }
            };
            let ((), error) = tokio::join!(floods, ended);
            let MessageError::Ended(ended) = error else { panic!("{error}") };
            let is_credit =
                matches!(ended, ConnectionError::Bytes { .. } | ConnectionError::Receives);
            assert!(is_credit, "{ended}");
        });
    }
}
