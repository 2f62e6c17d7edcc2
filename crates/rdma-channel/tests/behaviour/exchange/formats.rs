//! The format of messages, and bytes that are no message.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rdma_channel::{ExchangeError, QueuePairEndpoint, confirm, exchange, exchange_all};
use rdma_qp::EndpointError;

use crate::exchange::{LATER, MESSAGE, endpoint, endpoints, message};

/// The result of exchanging this end's endpoints with a peer that sends these bytes and nothing more.
fn heard(own: u32, said: &[u8]) -> Result<Vec<QueuePairEndpoint>, ExchangeError> {
    let (here, mut there) = UnixStream::pair().unwrap();
    there.write_all(said).unwrap();
    exchange_all(here, &endpoints(0x11, own), LATER)
}

#[test]
fn a_message_has_the_format_of_version_2() {
    let (here, mut there) = UnixStream::pair().unwrap();
    there.write_all(&message(&endpoints(0x21, 2))).unwrap();
    assert_eq!(exchange_all(&here, &endpoints(0x11, 2), LATER).unwrap(), endpoints(0x21, 2));
    let mut said = vec![0; 8 + 2 * 344];
    there.read_exact(&mut said).unwrap();
    assert_eq!(said[..8], *b"RDEX\0\x02\0\x02");
    assert_eq!(said[8..352], endpoint(0x11).to_bytes());
    assert_eq!(said[352..], endpoint(0x12).to_bytes());

    there.write_all(b"RDOK\0\x02\0\0").unwrap();
    confirm(&here, LATER).unwrap();
    drop(here);
    said.clear();
    there.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"RDOK\0\x02\0\0");
}

#[test]
fn an_exchange_of_no_endpoints_succeeds() {
    assert_eq!(heard(0, &message(&[])).unwrap(), []);
}

#[test]
fn no_byte_after_the_message_is_read() {
    let (here, mut there) = UnixStream::pair().unwrap();
    there.write_all(&message(&[endpoint(0x21)])).unwrap();
    there.write_all(b"RDOK\0\x02\0\0and what follows").unwrap();
    drop(there.shutdown(std::net::Shutdown::Write));
    assert_eq!(exchange(&here, &endpoint(0x11), LATER).unwrap(), endpoint(0x21));
    confirm(&here, LATER).unwrap();
    let mut rest = String::new();
    (&here).read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "and what follows");
}

/// The peer stays, and could send more.
#[test]
fn a_peer_with_another_protocol_is_refused_at_once_with_its_first_bytes() {
    for said in ["H", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "RDQP", "RDe"] {
        match heard(1, said.as_bytes()) {
            Err(error @ ExchangeError::Foreign { .. }) => {
                let shown = &said[..said.len().min(32)].escape_default().to_string();
                let text = error.to_string();
                assert!(
                    text.contains(&format!("it sent \"{shown}\" instead of \"RDEX\"")),
                    "{text}"
                );
            }
            other => panic!("{said}: {other:?}"),
        }
    }
}

#[test]
fn another_version_and_another_count_are_refused_at_once() {
    let other = |at: usize, value: u8| {
        let mut said = message(&endpoints(0x21, 2));
        said[at] = value;
        said.truncate(8);
        heard(2, &said).unwrap_err()
    };
    assert!(matches!(other(4, 1), ExchangeError::Version { found: 0x102 }));
    let error = other(5, 1);
    assert!(matches!(error, ExchangeError::Version { found: 1 }));
    assert!(
        error.to_string().contains("version 1 of the exchange, but this program uses version 2"),
        "{error}"
    );
    assert!(matches!(other(7, 1), ExchangeError::Count { own: 2, peer: 1 }));
    let error = other(6, 0xff);
    assert!(matches!(error, ExchangeError::Count { own: 2, peer: 0xff02 }));
    assert!(
        error.to_string().contains("65282 endpoints to exchange, but this end has 2"),
        "{error}"
    );
}

#[test]
fn an_invalid_endpoint_is_reported_with_its_index() {
    let mut said = message(&endpoints(0x21, 3));
    said[352 + 4] = 3; // its version
    let error = heard(3, &said).unwrap_err();
    let source = EndpointError::Version { found: 3 };
    assert!(matches!(error, ExchangeError::Endpoint { index: 1, source: s } if s == source));
    assert!(error.to_string().contains("endpoint 1 of the peer: "), "{error}");
    said[352] = b'x';
    let error = heard(3, &said).unwrap_err();
    let source = EndpointError::Magic;
    assert!(matches!(error, ExchangeError::Endpoint { index: 1, source: s } if s == source));
}

#[test]
fn an_endpoint_that_occurs_twice_is_refused() {
    let mut twice = endpoints(0x21, 3);
    twice[2] = twice[0];
    match heard(3, &message(&twice)) {
        Err(ExchangeError::Used { whose: "the peer's", first: 0, second: 2 }) => {}
        other => panic!("{other:?}"),
    }
    let (here, mut there) = UnixStream::pair().unwrap();
    match exchange_all(here, &twice, LATER) {
        Err(ExchangeError::Used { whose: "this end's", first: 0, second: 2 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(there.read(&mut [0]).unwrap(), 0, "something was sent");
}

#[test]
fn this_ends_own_endpoint_is_refused_among_the_peers() {
    let said = message(&[endpoint(0x21), endpoint(0x12), endpoint(0x23)]);
    match heard(3, &said) {
        Err(ExchangeError::Echo { index: 1 }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn too_many_are_refused_before_anything_is_sent() {
    let (here, mut there) = UnixStream::pair().unwrap();
    match exchange_all(here, &vec![endpoint(1); 65536], LATER) {
        Err(error @ ExchangeError::TooMany { count: 65536 }) => {
            assert!(error.to_string().contains("at most 65535"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(there.read(&mut [0; MESSAGE]).unwrap(), 0, "something was sent");
}

#[test]
fn an_end_that_is_at_another_step_is_refused() {
    let (here, mut there) = UnixStream::pair().unwrap();
    there.write_all(&message(&[endpoint(0x21)])).unwrap();
    let text = confirm(&here, LATER).unwrap_err().to_string();
    assert!(text.contains("\"RDEX\\x00\\x02\\x00\\x01\" instead of \"RDOK\""), "{text}");
}
