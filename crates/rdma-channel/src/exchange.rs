//! Exchanging the endpoints of both ends over a stream that the program provides.
//!
//! A message consists of this preface, followed by the endpoints. Numbers are in network byte order.
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `RDEX`; in a confirmation `RDOK` |
//! | 4 | 2 | version, 2 |
//! | 6 | 2 | number of endpoints that follow |
//! | 8 | 344 each | [`QueuePairEndpoint::to_bytes`] |
//!
//! Each end alternates between sending a block and receiving one, until both messages are complete. This cannot
//! deadlock if the stream has room for one block in each direction. Both messages have the same length, so the peer
//! cannot influence the size of allocations.

use std::collections::HashMap;
use std::slice;
use std::time::Duration;

use rdma_qp::QueuePairEndpoint;

use transfer::swap;

mod error;
mod stream;
mod transfer;

pub use error::ExchangeError;
pub use stream::{Pipes, TimedStream};

/// The version of the messages.
const VERSION: u16 = 2;

const ENDPOINTS: [u8; 4] = *b"RDEX";
const CONFIRMATION: [u8; 4] = *b"RDOK";
const PREFACE: usize = 8;

/// Sends the endpoint of this end to the peer, and returns the peer's endpoint. The peer calls the same function.
///
/// # Exchanging endpoints
/// Before two ends can connect, each needs the other's [`QueuePairEndpoint`], which contains its queue pair number
/// (QPN), addresses, and so on. The ends exchange them over an existing byte stream. Most often it is a TCP connection,
/// or the [pipes](Pipes) between a process and its child. Each end performs these steps:
///
/// 1. `exchange`, or [`exchange_all`] for several connections between the same two processes;
/// 2. [`handshake`](crate::PreparedChannel::handshake) with the peer's endpoint;
/// 3. post the receives that must be ready for the peer's first messages, if any;
/// 4. [`confirm`], which returns when the peer is connected, too.
///
/// Without the last step, an end may send to a peer that is not connected yet. A reliable connection then retries,
/// which costs time, and fails if the peer takes too long. The last step also detects that the peer's handshake failed,
/// because the peer then closes its stream.
///
/// The two ends are equal, and either may start. `exchange` changes no setting of the stream and reads no byte beyond
/// the message. So the stream can be used for anything else before and afterwards. It must be able to buffer 4096
/// unread bytes in each direction, as every pipe and socket can. The message is neither encrypted nor authenticated:
/// anyone with write access to the stream can choose the peer that this end connects to.
///
/// The call returns within `timeout`, however slowly the peer sends or reads. [`Duration::MAX`] means no limit.
///
/// # Errors
/// | | |
/// |---|---|
/// | [`Foreign`](ExchangeError::Foreign), [`Version`](ExchangeError::Version), [`Endpoint`](ExchangeError::Endpoint) | the peer uses another protocol or version; returned as soon as its bytes differ |
/// | [`Count`](ExchangeError::Count) | the peer has a different number of connections |
/// | [`Echo`](ExchangeError::Echo) | the peer echoes what it receives |
/// | [`Used`](ExchangeError::Used) | an endpoint appears twice in one message |
/// | [`Closed`](ExchangeError::Closed) | the peer closed the stream early |
/// | [`Timeout`](ExchangeError::Timeout) | the peer stalled |
/// | [`Io`](ExchangeError::Io) | the stream failed |
///
/// After an error, the stream cannot be used for another exchange, because it may be in the middle of a message. If an
/// endpoint does not fit this end (another transport, no common kind of address), `handshake` reports that.
///
/// # Examples
/// ```
/// use std::net::{TcpListener, TcpStream};
/// use std::thread;
/// use std::time::Duration;
///
/// use rdma_channel::{Channel, confirm, exchange, prelude::*};
/// use rdma_mem::{GatherList, ProtectionDomain, ScatterList};
/// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
///
/// type Failure = Box<dyn std::error::Error + Send + Sync>;
/// const WAIT: Duration = Duration::from_secs(10);
///
/// fn connect(stream: &TcpStream, pd: &ProtectionDomain) -> Result<Channel, Failure> {
///     let prepared = pd.create_channel().build()?;
///     let peer = exchange(stream, &prepared.endpoint(), WAIT)?;
///     let channel = prepared.handshake(peer)?;
///     confirm(stream, WAIT)?;
///     Ok(channel)
/// }
///
/// rdma_soft::install();
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
///
/// // This could be another process, or another machine.
/// let client = thread::spawn(move || -> Result<(), Failure> {
///     let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
///     let mut channel = connect(&TcpStream::connect(address)?, &pd)?;
///     let mut data = pd.allocate_region(5)?;
///     data.copy_from_slice(b"hello");
///     channel.send(SendWorkRequest::from_list(&GatherList::from([data.as_slice()])))?;
///     Ok(())
/// });
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut channel = connect(&listener.accept()?.0, &pd)?;
/// let mut buffer = pd.allocate_region(5)?;
/// let mut list = ScatterList::from([buffer.as_slice_mut()]);
/// channel.receive(ReceiveWorkRequest::from_list(&mut list))?;
/// assert_eq!(*buffer, *b"hello");
/// client.join().unwrap()?;
/// # Ok::<(), Failure>(())
/// ```
pub fn exchange(
    stream: impl TimedStream,
    own: &QueuePairEndpoint,
    timeout: Duration,
) -> Result<QueuePairEndpoint, ExchangeError> {
    let peers = exchange_all(stream, slice::from_ref(own), timeout)?;
    peers.first().copied().ok_or(ExchangeError::Count { own: 1, peer: 0 })
}

/// Sends several endpoints of this end to the peer, and returns the same number of endpoints from the peer. The first
/// endpoints of both ends belong to one connection, and so on.
///
/// Otherwise, this is like [`exchange`]. There can be at most 65535 endpoints. The peer must send the same number, so
/// this end allocates memory only for that number, whatever the peer announces.
///
/// # Errors
/// Same errors as [`exchange`], and [`ExchangeError::TooMany`] for too many endpoints.
///
/// # Examples
/// ```
/// use std::os::unix::net::UnixStream;
/// use std::thread;
/// use std::time::Duration;
///
/// use rdma_channel::exchange_all;
/// use rdma_qp::{Qpn, QueuePairEndpoint};
/// use rdma_types::Psn;
///
/// let endpoints = |first| [0_u32, 1, 2].map(|n| QueuePairEndpoint::new(Qpn::masked(first + n), Psn::masked(7)));
/// let (here, there) = UnixStream::pair()?;
/// let peer = thread::spawn(move || exchange_all(there, &endpoints(0x200), Duration::from_secs(10)));
/// let peers = exchange_all(here, &endpoints(0x100), Duration::from_secs(10))?;
/// assert_eq!(peers, endpoints(0x200));
/// assert_eq!(peer.join().unwrap()?, endpoints(0x100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn exchange_all(
    mut stream: impl TimedStream,
    own: &[QueuePairEndpoint],
    timeout: Duration,
) -> Result<Vec<QueuePairEndpoint>, ExchangeError> {
    let count =
        u16::try_from(own.len()).map_err(|_| ExchangeError::TooMany { count: own.len() })?;
    let mut message = Vec::with_capacity(PREFACE + own.len() * QueuePairEndpoint::BYTES);
    message.extend(preface(ENDPOINTS, count));
    message.extend(own.iter().flat_map(QueuePairEndpoint::to_bytes));
    let own = distinct(&message, "this end's")?;
    let theirs = swap(&mut stream, &message, timeout)?;
    let read = |(index, bytes)| match own.contains_key(bytes) {
        true => Err(ExchangeError::Echo { index }),
        false => QueuePairEndpoint::from_bytes(bytes)
            .map_err(|source| ExchangeError::Endpoint { index, source }),
    };
    let peers = endpoints(&theirs).enumerate().map(read).collect();
    distinct(&theirs, "the peer's").and(peers)
}

/// Notifies the peer that this end is connected, and returns when the peer is connected, too.
///
/// This is the last step of [exchanging endpoints](exchange#exchanging-endpoints): after it, the peer is ready to
/// receive. Both ends can also use it later, as a barrier.
///
/// # Errors
/// Same errors as [`exchange`], except for errors about endpoints. [`ExchangeError::Closed`] most often means that the
/// peer could not connect.
///
/// # Examples
/// ```
/// use std::os::unix::net::UnixStream;
/// use std::time::Duration;
///
/// use rdma_channel::{ExchangeError, confirm};
///
/// let (here, there) = UnixStream::pair()?;
/// drop(there); // its handshake failed
/// let outcome = confirm(here, Duration::from_secs(10));
/// assert!(matches!(outcome, Err(ExchangeError::Closed { .. })));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn confirm(mut stream: impl TimedStream, timeout: Duration) -> Result<(), ExchangeError> {
    swap(&mut stream, &preface(CONFIRMATION, 0), timeout).map(drop)
}

/// Returns the endpoints of a message, each as bytes.
fn endpoints(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    message.get(PREFACE..).unwrap_or_default().chunks(QueuePairEndpoint::BYTES)
}

/// Returns the endpoints of a message with their positions. Fails if an endpoint occurs twice.
fn distinct<'a>(
    message: &'a [u8],
    whose: &'static str,
) -> Result<HashMap<&'a [u8], usize>, ExchangeError> {
    let mut places = HashMap::new();
    for (second, bytes) in endpoints(message).enumerate() {
        if let Some(first) = places.insert(bytes, second) {
            return Err(ExchangeError::Used { whose, first, second });
        }
    }
    Ok(places)
}

fn preface(magic: [u8; 4], count: u16) -> [u8; PREFACE] {
    let ([a, b, c, d], [e, f], [g, h]) = (magic, VERSION.to_be_bytes(), count.to_be_bytes());
    [a, b, c, d, e, f, g, h]
}
