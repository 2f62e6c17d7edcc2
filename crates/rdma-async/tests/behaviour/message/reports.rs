//! The counters and events of connections whose peers broke the protocol or died.
//!
//! Each test runs in its own process, because the counters are those of the process.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use rdma_async::message::{ConnectionError, MessageError, Messages, Stream, losses, violations};
use rdma_async::{Connection, Pool};
use rdma_mem::Rkey;
use rdma_message::frame::{Body, CallId, Frame, Hello, Limits, Mode, Remote, Role};
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::yield_now;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

use super::offer_peers::{connections, options};
use super::rig::{endpoint, stream_and_peer};
use crate::common::host::Host;
use crate::common::run_in_one_thread;

/// The length of the longest message.
const LONGEST: u32 = 3000;
/// The bytes that a peer may send before the program has taken some.
const WINDOW: u32 = 4096;

/// The bytes of a frame with a payload of this length.
fn frame(body: Body, payload: usize) -> Vec<u8> {
    frame_with(Limits { receives: 16, bytes: 1 << 20, fetched: 0 }, body, payload)
}

fn frame_with(limits: Limits, body: Body, payload: usize) -> Vec<u8> {
    let mut bytes = Frame::new(limits, body).encode().as_bytes().to_vec();
    bytes.resize(bytes.len() + payload, 7);
    bytes
}

fn hello(mode: Mode) -> Hello {
    Hello {
        version: Hello::VERSION,
        mode,
        fetches: true,
        receive_bytes: 1024,
        max_message: 1 << 20,
        calls: 4,
    }
}

/// The end under test.
enum End {
    Messages(Messages),
    Stream(Stream),
}

impl End {
    async fn new(mode: Mode, connection: Connection, host: &Host) -> Self {
        let options = options().max_message(LONGEST).window_bytes(WINDOW);
        let pool = Pool::from(host.pool.clone());
        if mode == Mode::Messages {
            Self::Messages(Messages::new(connection, &pool, options).await.unwrap())
        } else {
            Self::Stream(Stream::new(connection, &pool, options).await.unwrap())
        }
    }

    /// Keeps all that arrives until the connection fails or the peer has finished. Returns the address of the peer.
    async fn fail(&mut self) -> String {
        let (mut messages, mut chunks) = (Vec::new(), Vec::new());
        let address = match self {
            Self::Messages(end) => {
                while let Ok(Some(message)) = end.receive().await {
                    messages.push(message);
                }
                end.peer_addr()
            }
            Self::Stream(end) => {
                while let Ok(Some(chunk)) = end.read_chunk().await {
                    chunks.push(chunk);
                }
                end.peer_addr()
            }
        };
        address.unwrap().to_string()
    }
}

/// Collects the events about messages and streams until the guard is dropped.
fn events() -> (Arc<Mutex<Vec<Event>>>, DefaultGuard) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            heard.lock().unwrap().push(event);
        }
    });
    (events, tracing::subscriber::set_default(hears))
}

/// Returns the level and the error of the only event about an end whose peer sends these frames, and then dies if it
/// `dies`. The end receives only afterwards, so the program has taken nothing when the last frame arrives.
async fn report(host: &Host, mode: Mode, frames: &[Vec<u8>], dies: bool) -> (Level, String) {
    let (connection, peer) = connections(host, options()).await;
    let mut end = End::new(mode, connection, host).await;
    let (events, _guard) = events();
    let buffers = (0..32).map(|_| host.pool.allocate(1024).unwrap());
    let _ring = peer.receive_ring(buffers).unwrap();
    for frame in frames {
        // The end may have closed the connection.
        let _ = peer.send(host.buffer(frame)).await;
    }
    if dies {
        peer.close().unwrap();
    }
    let address = end.fail().await;
    while events.lock().unwrap().is_empty() {
        yield_now().await;
    }
    let events = events.lock().unwrap();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(event.field("peer"), Some(&*address), "{event:?}");
    (event.level, event.field("error").unwrap().to_owned())
}

/// Checks that the end of each of these connections is a violation.
async fn each_is_a_violation(host: &Host, mode: Mode, cases: &[(&str, Vec<Vec<u8>>)]) {
    for (expected, frames) in cases {
        let before = (violations(), losses());
        let (level, error) = report(host, mode, frames, false).await;
        assert!(level == Level::WARN && error.contains(expected), "{level}: {error}, {expected}");
        assert_eq!((violations(), losses()), (before.0 + 1, before.1), "{expected}");
    }
}

#[test]
fn an_event_names_the_queue_pair_of_a_peer_without_an_address() {
    let name = "message::reports::an_event_names_the_queue_pair_of_a_peer_without_an_address";
    in_own_process(name, || {
        run_in_one_thread(async || {
            let host = Host::new("soft0");
            let (mut stream, peer) = stream_and_peer(&host, options()).await;
            let (events, _guard) = events();
            peer.send(host.buffer(b"certainly not a frame")).await.unwrap();
            stream.read_u8().await.unwrap_err();
            let events = events.lock().unwrap();
            let [event] = events.as_slice() else { panic!("{events:?}") };
            let named = event.field("peer").unwrap();
            assert!(named.starts_with(&format!("QPN {} at GID ", peer.qpn())), "{named}");
        });
    });
}

#[test]
fn each_violation_of_the_protocol_is_counted_and_reported_with_the_address_of_the_peer() {
    let name = "message::reports::each_violation_of_the_protocol_is_counted_and_reported_with_the_address_of_the_peer";
    in_own_process(name, || run_in_one_thread(violated));
}

async fn violated() {
    let host = Host::new("soft0");
    let (id, long) = (CallId::new(1, 0), LONGEST + 1);
    let first = |role, length, payload| frame(Body::First { role, length }, payload);
    let message = |length, payload| first(Role::Message, length, payload);
    let offer = |length| {
        let source = Remote { va: 0, rkey: Rkey::new(1) };
        frame(Body::Offer { role: Role::Message, length, source }, 0)
    };
    let credit = |receives, fetched| {
        frame_with(Limits { receives, bytes: 1 << 20, fetched }, Body::Credit, 0)
    };
    let open = frame(Body::Hello(hello(Mode::Messages)), 0);
    let after = |frames: &[Vec<u8>]| [std::slice::from_ref(&open), frames].concat();
    let short = Hello { receive_bytes: 63, ..hello(Mode::Messages) };
    let cases = [
        ("invalid frame", vec![b"certainly not a frame".to_vec()]),
        ("too short for the protocol", vec![frame(Body::Hello(short), 0)]),
        ("must be a hello", vec![message(1, 1)]),
        ("must be a hello", after(std::slice::from_ref(&open))),
        ("does not belong to this kind", after(&[frame(Body::Data, 9)])),
        // Lengths beyond the limit.
        ("3000 B are accepted", after(&[message(long, 900)])),
        ("3000 B are accepted", after(&[offer(long)])),
        // Wrong IDs.
        ("is invalid here", after(&[first(Role::Reply(id), 9, 9)])),
        ("is invalid here", after(&[frame(Body::Cancel(id), 0)])),
        ("is invalid here", after(&[frame(Body::Refusal(id), 0)])),
        ("is invalid here", after(&[first(Role::Request(CallId::new(1, 999)), 9, 9)])),
        // Messages that do not end.
        ("lacks 100 B", after(&[message(1000, 900), frame(Body::Rest, 900)])),
        ("invalid frame", after(&[message(1000, 900), frame(Body::Rest, 0)])),
        ("not consecutive", after(&[message(1000, 900), message(1000, 900)])),
        ("not consecutive", after(&[frame(Body::Rest, 900)])),
        ("after it had finished", after(&[frame(Body::Finish, 0), message(9, 9)])),
        // Frames and notices without credit.
        ("with a credit of", after(&vec![message(900, 900); 10])),
        ("does not follow", after(&[credit(15, 0)])),
        ("0 were offered", after(&[credit(16, 1)])),
        ("not due", after(&[frame(Body::Acknowledge, 0)])),
    ];
    each_is_a_violation(&host, Mode::Messages, &cases).await;

    let open = frame(Body::Hello(hello(Mode::Stream)), 0);
    let after = |frames: &[Vec<u8>]| [std::slice::from_ref(&open), frames].concat();
    let cases = [
        ("invalid frame", vec![b"certainly not a frame".to_vec()]),
        ("does not belong to this kind", after(&[message(9, 9)])),
        ("after it had finished", after(&[frame(Body::Finish, 0), frame(Body::Data, 9)])),
        ("without credit", after(&vec![frame(Body::Data, 9); 33])),
    ];
    each_is_a_violation(&host, Mode::Stream, &cases).await;
}

#[test]
fn a_peer_that_dies_is_counted_and_reported_with_its_address_but_no_violation() {
    let name = "message::reports::a_peer_that_dies_is_counted_and_reported_with_its_address_but_no_violation";
    in_own_process(name, || run_in_one_thread(died));
}

async fn died() {
    let host = Host::new("soft0");
    let part = Body::First { role: Role::Message, length: 1000 };
    for (mode, body, payload) in [
        (Mode::Messages, part, 900),
        (Mode::Messages, Body::Credit, 0),
        (Mode::Stream, Body::Data, 900),
    ] {
        let before = losses();
        let frames = [frame(Body::Hello(hello(mode)), 0), frame(body, payload)];
        let (level, error) = report(&host, mode, &frames, true).await;
        assert_eq!((level, error), (Level::DEBUG, ConnectionError::Lost.to_string()), "{body:?}");
        assert_eq!((violations(), losses()), (0, before + 1), "{body:?}");
    }
}

#[test]
fn a_peer_of_another_kind_is_reported_but_no_violation() {
    let name = "message::reports::a_peer_of_another_kind_is_reported_but_no_violation";
    in_own_process(name, || run_in_one_thread(mismatched));
}

async fn mismatched() {
    let host = Host::new("soft0");
    for (own, other) in [(Mode::Messages, Mode::Stream), (Mode::Stream, Mode::Messages)] {
        let frames = [frame(Body::Hello(hello(other)), 0)];
        let (level, error) = report(&host, own, &frames, false).await;
        let expected = ConnectionError::Mode(other).to_string();
        assert_eq!((level, error), (Level::WARN, expected));
        assert_eq!((violations(), losses()), (0, 0), "{own:?}");
    }
}

#[test]
fn ends_of_different_kinds_both_learn_why_they_end() {
    run_in_one_thread(|| async {
        let endpoint = endpoint("soft0");
        let listener = endpoint.listen_for_messages("127.0.0.1:0", options()).await.unwrap();
        let stream = endpoint.connect_stream(listener.local_addr(), options());
        let (stream, messages) = tokio::join!(stream, listener.accept());
        let (mut stream, messages) = (stream.unwrap(), messages.unwrap());
        let write = async {
            loop {
                if let Err(error) = stream.write_all(b"hello").await {
                    return error;
                }
            }
        };
        let (error, received) = tokio::join!(write, messages.receive());
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert_eq!(error.to_string(), ConnectionError::Mode(Mode::Messages).to_string());
        let received = received.unwrap_err();
        let theirs = ConnectionError::Mode(Mode::Stream);
        assert!(matches!(&received, MessageError::Ended(ended) if *ended == theirs), "{received}");
        let sent = messages.send(b"late").await.unwrap_err();
        assert!(matches!(&sent, MessageError::Ended(ended) if *ended == theirs), "{sent}");
    });
}
