//! The exchange: what both ends have to know of each other goes through a stream that they have.
//!
//! A message is this preface, and the endpoints. Numbers are in network order.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `RDEX`; of a confirmation `RDOK` |
//! | 4 | 2 | version, 2 |
//! | 6 | 2 | how many endpoints follow |
//! | 8 | 344 each | [`QueuePairEndpoint::to_bytes`] |
//!
//! Both ends send a block, then take one, until all is there: neither waits for the other as long as a
//! block fits into the stream in each direction. Both messages have one length, so what is allocated
//! depends on this end alone.

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

/// Tells the peer the endpoint of this end, and returns the endpoint of the peer, which does the same.
///
/// # Telling the peer
/// Before two ends are connected, each has to know where the other one is: its queue pair's number
/// (QPN), addresses, and so on, a [`QueuePairEndpoint`]. It goes by a stream of bytes that both
/// have already, most often a TCP connection, or the [pipes](Pipes) between a process and its
/// child. At each end:
///
/// 1. `exchange`, or [`exchange_all`] for several connections between the same two processes;
/// 2. [`handshake`](crate::PreparedChannel::handshake) with what came;
/// 3. post the receives that are to be there before the peer's first message, if any;
/// 4. [`confirm`], which returns when the peer is connected, too.
///
/// Without the last step an end may send to one that is not connected yet. A reliable connection tries again
/// for a while, which takes time, or fails where the other end takes longer. And an end whose handshake
/// failed is noticed there: its stream is closed.
///
/// Neither end is the first. Nothing of the stream is changed, and no byte after the message is
/// taken from it, so it can be used for anything before and afterwards. It has to hold 4096 bytes
/// in each direction that nobody has read yet, as every pipe and socket does. What passes through
/// is neither secret nor signed: who can write to the stream decides which peer the connection is
/// to.
///
/// It returns within `timeout`, however slowly the peer sends or reads. [`Duration::MAX`] is no
/// limit.
///
/// # Errors
/// | | |
/// |---|---|
/// | [`Foreign`](ExchangeError::Foreign), [`Version`](ExchangeError::Version), [`Endpoint`](ExchangeError::Endpoint) | the peer speaks something else; said as soon as its bytes differ |
/// | [`Count`](ExchangeError::Count) | the peer wants another number of connections |
/// | [`Echo`](ExchangeError::Echo) | the peer sends back what it is sent |
/// | [`Used`](ExchangeError::Used) | an endpoint stands twice in one message |
/// | [`Closed`](ExchangeError::Closed) | the peer closed the stream early |
/// | [`Timeout`](ExchangeError::Timeout) | the peer stalled |
/// | [`Io`](ExchangeError::Io) | the stream failed |
///
/// The stream is of no use for another exchange then: its position in the message is unknown. That
/// the endpoint does not fit this end (another transport, no common kind of address) is an error of
/// `handshake`.
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

/// Tells the peer several endpoints of this end, and returns as many of the peer: for the connection that
/// has the first endpoint here, the first one there, and so on.
///
/// Else it is as [`exchange`]. There are at most 65535 endpoints. The peer has to have as many, which is
/// known before anything is allocated for them.
///
/// # Errors
/// Those of [`exchange`], and [`ExchangeError::TooMany`].
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

/// Tells the peer that this end is connected, and returns when the peer is, too.
///
/// It is the last step of [telling the peer](exchange#telling-the-peer): once it has returned, the peer is
/// ready for what it is sent. As a barrier it can be used at any later time, by both ends.
///
/// # Errors
/// Those of [`exchange`] but what is wrong with endpoints. [`ExchangeError::Closed`] most often says that
/// the peer could not connect.
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

/// The endpoints of a message as bytes.
fn endpoints(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    message.get(PREFACE..).unwrap_or_default().chunks(QueuePairEndpoint::BYTES)
}

/// The endpoints of a message, each with its position, unless one is there twice.
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
