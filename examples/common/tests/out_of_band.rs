//! Two processes exchange their endpoints, and do not hang on a peer that does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::device::GidType;
use rdma::qp::{EndpointError, Psn, Qpn, QueuePairEndpoint};
use rdma_examples_common::Failure;
use rdma_examples_common::out_of_band::{OutOfBand, OutOfBandError, Peer};
use test_support::crowd::ELSEWHERE;
use test_support::loopback::free_address;

const ENDPOINT: usize = QueuePairEndpoint::BYTES;
/// A limit that a test waits for. Connecting to a listener takes less on any machine.
const SOON: Duration = Duration::from_secs(4);
const LATER: Duration = Duration::from_secs(30);

fn endpoint(qpn: u32) -> QueuePairEndpoint {
    let gid = "::ffff:192.0.2.1".parse().unwrap();
    QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(7)).with_gid(gid, GidType::ROCE_V2)
}

/// Connects to a listener of the test, and returns both sides.
fn connected(wait: Duration) -> (OutOfBand, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let out_of_band = OutOfBand::connect(&address, Instant::now() + wait).unwrap();
    (out_of_band, listener.accept().unwrap().0)
}

/// Exchanges endpoints with a peer that runs this code.
fn exchanged(
    wait: Duration,
    peer: impl FnOnce(&mut TcpStream),
) -> Result<QueuePairEndpoint, Failure> {
    let (mut out_of_band, mut stream) = connected(wait);
    peer(&mut stream);
    let own = endpoint(0x11).to_bytes();
    out_of_band.exchange(&own, |bytes| Ok(QueuePairEndpoint::from_bytes(bytes)?))
}

fn short(outcome: Result<QueuePairEndpoint, Failure>) -> (String, usize, &'static str) {
    match outcome.unwrap_err().downcast().map(|error| *error) {
        Ok(OutOfBandError::Short { got, expected, then }) => {
            (got.escape_ascii().to_string(), expected, then)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_side_gets_the_endpoint_of_the_other() {
    let (sender, address) = mpsc::channel();
    let listening = thread::spawn(move || {
        let free = free_address();
        sender.send(free.to_string()).unwrap();
        // The other side tries again until this one listens.
        let mut side = OutOfBand::listen(&free.to_string(), Instant::now() + LATER).unwrap();
        assert!(side.listens());
        let peer = side.exchange(&endpoint(0x11).to_bytes(), |bytes| Ok::<_, Failure>(*bytes));
        side.finish(LATER).unwrap();
        peer.unwrap()
    });
    let mut side = OutOfBand::connect(&address.recv().unwrap(), Instant::now() + LATER).unwrap();
    assert!(!side.listens());
    let peer = side.exchange(&endpoint(0x12).to_bytes(), |bytes| Ok::<_, Failure>(*bytes)).unwrap();
    side.finish(LATER).unwrap();
    assert_eq!(QueuePairEndpoint::from_bytes(&peer), Ok(endpoint(0x11)));
    assert_eq!(QueuePairEndpoint::from_bytes(&listening.join().unwrap()), Ok(endpoint(0x12)));
}

#[test]
fn the_listener_answers_after_it_has_connected_or_failed() {
    for fails in [false, true] {
        // On this address no other socket gets the port in between, and no client connects to itself.
        let free = TcpListener::bind((ELSEWHERE, 0)).unwrap().local_addr().unwrap().to_string();
        let address = free.clone();
        let (asks, asked) = mpsc::channel();
        let (answers, answered) = mpsc::channel::<bool>();
        let listening = thread::spawn(move || {
            let mut side = OutOfBand::listen(&address, Instant::now() + LATER).unwrap();
            side.exchange(&endpoint(0x11).to_bytes(), |_| -> Result<(), Failure> {
                asks.send(()).unwrap();
                assert!(answered.recv().unwrap(), "answered before it had connected");
                if fails { Err("does not fit".into()) } else { Ok(()) }
            })
        });
        let mut stream = loop {
            match TcpStream::connect(&free) {
                Ok(stream) => break stream,
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
            }
        };
        stream.write_all(&endpoint(0x12).to_bytes()).unwrap();
        asked.recv().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let early = stream.read(&mut [0]).map_err(|error| error.kind());
        answers.send(early == Err(ErrorKind::WouldBlock)).unwrap();
        stream.set_read_timeout(None).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, endpoint(0x11).to_bytes());
        assert_eq!(listening.join().unwrap().is_err(), fails);
    }
}

#[test]
fn a_peer_that_stalls_or_closes_early_is_an_error_with_what_it_sent() {
    assert_eq!(short(exchanged(SOON, |_| {})), (String::new(), ENDPOINT, "stalled"));
    let text = "GET / HTTP/1.1\r\n\r\n";
    let outcome = short(exchanged(SOON, |stream| stream.write_all(text.as_bytes()).unwrap()));
    assert_eq!(outcome, (text.escape_default().to_string(), ENDPOINT, "stalled"));
    let outcome = short(exchanged(LATER, |stream| {
        stream.write_all(&endpoint(0x12).to_bytes()[..4]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }));
    assert_eq!(outcome, ("RDQP".to_owned(), ENDPOINT, "closed the connection"));
}

#[test]
fn a_peer_that_sends_a_byte_now_and_then_does_not_move_the_deadline() {
    let (mut out_of_band, mut stream) = connected(SOON);
    let (done, over) = mpsc::channel::<()>();
    let sending = thread::spawn(move || {
        // Sending 296 bytes with these pauses takes far longer than the deadline.
        while over.recv_timeout(SOON / 20) == Err(mpsc::RecvTimeoutError::Timeout) {
            stream.write_all(b"R").unwrap();
        }
    });
    let outcome = out_of_band.receive::<ENDPOINT>();
    drop(done);
    sending.join().unwrap();
    assert!(matches!(outcome, Err(OutOfBandError::Short { then: "stalled", .. })), "{outcome:?}");
}

#[test]
fn a_peer_with_another_protocol_is_an_error_that_names_it() {
    let outcome = |bytes: [u8; ENDPOINT]| {
        let outcome = exchanged(LATER, |stream| stream.write_all(&bytes).unwrap());
        *outcome.unwrap_err().downcast::<EndpointError>().unwrap()
    };
    let mut bytes = endpoint(0x12).to_bytes();
    bytes[4] = 9;
    assert_eq!(outcome(bytes), EndpointError::Version { found: 9 });
    assert_eq!(outcome([b'x'; ENDPOINT]), EndpointError::Magic);
}

#[test]
fn a_finished_process_waits_for_the_peer_with_a_limit() {
    let (side, stream) = connected(LATER);
    stream.shutdown(Shutdown::Write).unwrap();
    side.finish(LATER).unwrap();
    drop(stream);

    let (side, stream) = connected(LATER);
    assert!(matches!(side.finish(SOON), Err(OutOfBandError::Late)));
    drop(stream);

    let (side, mut stream) = connected(LATER);
    stream.write_all(b"x").unwrap();
    assert!(matches!(side.finish(LATER), Err(OutOfBandError::Long)));
}

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    peer: Peer,
}

fn meet(options: &[&str]) -> Result<Option<OutOfBand>, OutOfBandError> {
    let options = ["program"].iter().chain(options);
    Arguments::try_parse_from(options).unwrap().peer.meet(SOON)
}

#[test]
fn a_process_without_a_peer_ends_and_names_its_address() {
    assert!(meet(&[]).unwrap().is_none());
    match meet(&["--listen", "127.0.0.1:0"]) {
        Err(OutOfBandError::NobodyConnected { address, .. }) => {
            assert!(address.starts_with("127.0.0.1:") && address != "127.0.0.1:0", "{address}");
        }
        other => panic!("{other:?}"),
    }
    let free = free_address().to_string();
    let error = meet(&["--connect", &free]).unwrap_err();
    assert!(matches!(&error, OutOfBandError::NobodyListens { address } if *address == free));
}

#[test]
fn invalid_addresses_are_refused_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    for (option, address) in
        [("--connect", "no port"), ("--listen", "no port"), ("--listen", &taken.to_string())]
    {
        let error = meet(&[option, address]).unwrap_err();
        assert!(matches!(error, OutOfBandError::Address { .. }), "{error:?}");
        assert!(error.to_string().contains(address), "{error}");
    }
    let both = ["program", "--listen", "--connect", "127.0.0.1:1"];
    assert!(Arguments::try_parse_from(both).is_err());
}
