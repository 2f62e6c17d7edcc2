//! The parts that drivers need to connect by rdma_cm: the private data of its messages, and the errors.
//!
//! The private data begins with the program's bytes, so a C program at the other end can read them. Ends of this
//! workspace also need the length of these bytes, because rdma_cm pads private data with zeros. It is in the last four
//! bytes of the field: `RC`, 0 (1 if a server is busy), and the length.

mod clients;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_cm::{Accepting, ConnectionRequest, Context, End, Error, Reason, Resolved};
use rdma_types::TransportType;
use rustix::io::Errno;

use crate::client::awaited_answer;
use crate::error::close_reason::CloseReason;
use crate::error::connect_error::ConnectError;
use crate::farewell::Farewell;

pub use clients::{CmClient, CmClients, CmNews, MakeCmEnds, NO_QUEUE_PAIR, reject};

/// The length of the last part of private data.
const TRAILER: usize = 4;
/// The first bytes of this part.
const MAGIC: [u8; 2] = *b"RC";

/// The maximum length of a client's user bytes.
pub const MOST_OF_CLIENT: usize = Resolved::MAX_PRIVATE_DATA - TRAILER;
/// The maximum length of a server's user bytes.
pub const MOST_OF_SERVER: usize = Accepting::MAX_PRIVATE_DATA - TRAILER;
/// The maximum length of the reason for a rejection.
const MOST_OF_REASON: usize = ConnectionRequest::MAX_PRIVATE_DATA - TRAILER;

/// Returns the private data of a REQ.
///
/// # Errors
/// [`ConnectError::UserBytesTooLong`] for more than [`MOST_OF_CLIENT`] bytes.
pub fn request(user_bytes: &[u8]) -> Result<Vec<u8>, ConnectError> {
    encode(user_bytes, MOST_OF_CLIENT)
}

/// Returns the private data of a REP.
///
/// # Errors
/// [`ConnectError::UserBytesTooLong`] for more than [`MOST_OF_SERVER`] bytes.
pub fn reply(user_bytes: &[u8]) -> Result<Vec<u8>, ConnectError> {
    encode(user_bytes, MOST_OF_SERVER)
}

/// Returns the private data of a REJ, with as much of the reason as fits.
#[must_use]
pub fn rejection(why: &str, is_busy: bool) -> Vec<u8> {
    let cut = (0..=MOST_OF_REASON).rev().find(|&length| why.is_char_boundary(length));
    let why = why.get(..cut.unwrap_or(0)).unwrap_or_default();
    let mut data = encode(why.as_bytes(), MOST_OF_REASON).unwrap_or_default();
    if let [.., kind, _] = data.as_mut_slice() {
        *kind = is_busy.into();
    }
    data
}

fn encode(bytes: &[u8], most: usize) -> Result<Vec<u8>, ConnectError> {
    let length = bytes.len();
    let too_long = ConnectError::UserBytesTooLong { length, most };
    let count = u8::try_from(length).ok().filter(|_| length <= most).ok_or(too_long)?;
    let mut data = bytes.to_vec();
    data.resize(most, 0);
    data.extend(MAGIC.into_iter().chain([0, count]));
    Ok(data)
}

/// Returns the program's bytes in private data, and whether a server is busy. If the other end is not of this workspace,
/// returns all bytes of the field.
#[must_use]
pub fn decode(data: &[u8]) -> (&[u8], bool) {
    match data.split_last_chunk::<TRAILER>() {
        Some((bytes, &[r, c, kind @ (0 | 1), length])) if [r, c] == MAGIC => {
            (bytes.get(..length.into()).unwrap_or(bytes), kind == 1)
        }
        _ => (data, false),
    }
}

/// Returns the error of a client that could not connect within `limit`.
#[must_use]
pub fn not_connected(error: Error, address: SocketAddr, limit: Duration) -> ConnectError {
    match error {
        Error::Ended(end) => ended(end, address, limit),
        Error::TimedOut { .. } => unanswered(address, limit),
        error => failed(error, || format!("connecting to {address}")),
    }
}

/// Returns the error of a client that was not answered in time.
#[must_use]
pub fn unanswered(address: SocketAddr, limit: Duration) -> ConnectError {
    ConnectError::Timeout { limit, awaited: awaited_answer(address) }
}

/// Returns the error of a server whose client did not confirm in time.
#[must_use]
pub fn unconfirmed(address: SocketAddr, limit: Duration) -> ConnectError {
    let awaited = format!("confirmation of the client at {address}: check its program");
    ConnectError::Timeout { limit, awaited }
}

/// Returns the error of a client that was not connected within `limit` after its request was accepted.
#[must_use]
pub fn not_accepted(error: Error, address: SocketAddr, limit: Duration) -> ConnectError {
    match error {
        Error::Ended(_) => {
            ConnectError::Closed { address, awaited: "it had confirmed the connection" }
        }
        Error::TimedOut { .. } => unconfirmed(address, limit),
        error => failed(error, || format!("accepting the client at {address}")),
    }
}

/// Returns the error of a server that could not listen.
#[must_use]
pub fn not_listening(error: Error, address: SocketAddr) -> ConnectError {
    let errno = match error {
        Error::PortInUse { .. } => Some(Errno::ADDRINUSE),
        Error::PortReserved { .. } => Some(Errno::ACCESS),
        Error::NotOwn { .. } => Some(Errno::ADDRNOTAVAIL),
        _ => None,
    };
    let tried = || format!("listening on {address}");
    match errno {
        Some(errno) => ConnectError::Io { tried: tried(), source: errno.into() },
        None => failed(error, tried),
    }
}

/// Returns another error of rdma_cm.
#[must_use]
pub fn failed(error: Error, tried: impl FnOnce() -> String) -> ConnectError {
    match error {
        Error::Memory(error) => error.into(),
        Error::Connect(error) => error.into(),
        Error::Resolve(source) => ConnectError::Resolve { source },
        Error::System { source, .. } => ConnectError::Io { tried: tried(), source },
        error => {
            let kind = match error {
                Error::NoRoute { .. } => io::ErrorKind::HostUnreachable,
                Error::QueuePairInUse { .. } | Error::TooManyConnections { .. } => {
                    io::ErrorKind::ResourceBusy
                }
                _ => io::ErrorKind::Unsupported,
            };
            ConnectError::Io { tried: tried(), source: io::Error::new(kind, error) }
        }
    }
}

/// Returns the error of a client whose connection was not established.
fn ended(end: End, address: SocketAddr, limit: Duration) -> ConnectError {
    match end {
        End::Rejected { reason: Reason::INVALID_SERVICE_ID, .. } => {
            ConnectError::NobodyListens { tried: vec![address] }
        }
        End::Rejected { reason: Reason::CONSUMER_DEFINED, private_data } => {
            let (why, is_busy) = decode(&private_data);
            let is_known = why.len() < private_data.len();
            let why = String::from_utf8_lossy(if is_known { why } else { &[] }).into();
            if is_busy { ConnectError::Busy(why) } else { ConnectError::Rejected(why) }
        }
        End::Rejected { reason: Reason::STALE_CONNECTION, .. } | End::Busy => {
            ConnectError::Busy(end.to_string().into())
        }
        End::Unanswered { .. } => unanswered(address, limit),
        End::PeerGone | End::Disconnected { .. } => {
            ConnectError::Closed { address, awaited: "it had accepted this client" }
        }
        end => ConnectError::Rejected(end.to_string().into()),
    }
}

/// Returns why an established connection of a device has ended, and the peer's farewell unless the peer's process has
/// died.
#[must_use]
pub fn gone(end: &End, context: &Context) -> (CloseReason, Option<Farewell>) {
    let is_iwarp = context.device().transport_type() == TransportType::IWARP;
    gone_over(end, is_iwarp)
}

fn gone_over(end: &End, is_iwarp: bool) -> (CloseReason, Option<Farewell>) {
    match end {
        // The end of the TCP connection has no private data.
        End::Disconnected { .. } if is_iwarp => (CloseReason::IwarpEnded, None),
        // If the process has ended without a message, there is no private data.
        End::Disconnected { private_data } if !private_data.is_empty() => {
            let frame = private_data.get(..Farewell::FRAME).and_then(Farewell::from_frame);
            (CloseReason::Disconnected, Some(frame.unwrap_or(Farewell::PLAIN)))
        }
        _ => (CloseReason::Died, None),
    }
}

#[cfg(test)]
mod tests {
    use rdma_cm::Phase;

    use super::*;

    const ADDRESS: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7471);

    #[test]
    fn user_bytes_of_each_length_arrive_unchanged() {
        for length in 0..=MOST_OF_CLIENT {
            let bytes = vec![7; length];
            let data = request(&bytes).unwrap();
            assert_eq!((data.len(), decode(&data)), (56, (&*bytes, false)));
        }
        let data = reply(&[0; MOST_OF_SERVER]).unwrap();
        assert_eq!((data.len(), decode(&data)), (196, (&[0; MOST_OF_SERVER][..], false)));
        let error = request(&[7; 53]).unwrap_err();
        assert!(matches!(error, ConnectError::UserBytesTooLong { length: 53, most: 52 }));
    }

    /// This format is the same in every release.
    #[test]
    fn the_format() {
        let data = request(b"hello").unwrap();
        assert_eq!((&data[..6], &data[51..]), (&b"hello\0"[..], &b"\0RC\0\x05"[..]));
    }

    #[test]
    fn private_data_of_other_programs_is_returned_as_a_whole() {
        let padded = [&b"hello"[..], &[0; 51]].concat();
        assert_eq!(decode(&padded), (&*padded, false));
        assert_eq!(decode(b"RC"), (&b"RC"[..], false));
        assert_eq!(decode(b""), (&b""[..], false));
        // A length beyond the field.
        assert_eq!(decode(b"abRC\0\xff"), (&b"ab"[..], false));
        assert_eq!(decode(b"abRC\x02\x01"), (&b"abRC\x02\x01"[..], false));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let why = "ä".repeat(100);
        let data = rejection(&why, true);
        assert_eq!((data.len(), decode(&data)), (148, ("ä".repeat(72).as_bytes(), true)));
        assert_eq!(decode(&rejection("no", false)), (&b"no"[..], false));
        assert_eq!(decode(&rejection("", false)), (&b""[..], false));
    }

    fn of(end: End) -> ConnectError {
        not_connected(end.into(), ADDRESS, Duration::from_secs(1))
    }

    #[test]
    fn rejections_become_the_errors_of_a_rendezvous_by_tcp() {
        let rejected = |reason, private_data| of(End::Rejected { reason, private_data });
        let error = rejected(Reason::INVALID_SERVICE_ID, Vec::new());
        assert!(matches!(error, ConnectError::NobodyListens { tried } if tried == [ADDRESS]));
        let error = rejected(Reason::CONSUMER_DEFINED, rejection("no password", false));
        assert!(matches!(error, ConnectError::Rejected(why) if &*why == "no password"));
        let error = rejected(Reason::CONSUMER_DEFINED, rejection("full", true));
        assert!(matches!(error, ConnectError::Busy(why) if &*why == "full"));
        // The private data of a C program is not a text.
        let error = rejected(Reason::CONSUMER_DEFINED, vec![1; 148]);
        assert!(matches!(error, ConnectError::Rejected(why) if why.is_empty()));
        assert!(matches!(rejected(Reason::STALE_CONNECTION, vec![0; 148]), ConnectError::Busy(_)));
        assert!(matches!(of(End::PeerGone), ConnectError::Closed { .. }));
        assert!(matches!(
            of(End::Unanswered { phase: Phase::Connect }),
            ConnectError::Timeout { .. }
        ));
        assert!(matches!(of(End::OtherUser), ConnectError::Rejected(_)));
    }

    #[test]
    fn a_port_in_use_is_reported_like_that_of_a_socket() {
        let (port, device) = (7471, "soft0".to_owned());
        let error = not_listening(Error::PortInUse { port, device }, ADDRESS);
        assert!(error.to_string().contains("another program listens there"), "{error}");
        let error = not_listening(Error::NotOwn { address: ADDRESS.ip() }, ADDRESS);
        assert!(error.to_string().contains("`ip address` lists them"), "{error}");
        let error = not_listening(Error::PortReserved { port: 80 }, ADDRESS);
        assert!(error.to_string().contains("ports below 1024 need a privilege"), "{error}");
    }

    #[test]
    fn a_farewell_arrives_in_a_dreq() {
        let of = |private_data| gone_over(&End::Disconnected { private_data }, false);
        let farewell = Farewell::new(b"bye").unwrap();
        let mut padded = farewell.to_frame().to_vec();
        padded.resize(220, 0);
        assert_eq!(of(padded), (CloseReason::Disconnected, Some(farewell)));
        // A C program sends none.
        assert_eq!(of(vec![0; 220]), (CloseReason::Disconnected, Some(Farewell::PLAIN)));
        assert_eq!(of(Vec::new()), (CloseReason::Died, None));
        assert_eq!(gone_over(&End::PeerGone, false), (CloseReason::Died, None));
        assert_eq!(gone_over(&End::PeerGone, true), (CloseReason::Died, None));
        let of_tcp = End::Disconnected { private_data: vec![0; 220] };
        assert_eq!(gone_over(&of_tcp, true), (CloseReason::IwarpEnded, None));
        assert!(CloseReason::IwarpEnded.is_of_peer());
    }
}
