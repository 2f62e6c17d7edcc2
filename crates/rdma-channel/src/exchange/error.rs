//! Errors of the exchange of endpoints.

use std::io;
use std::time::Duration;

use rdma_qp::EndpointError;

/// The reason why the two ends could not exchange their endpoints.
///
/// After any of these errors, the stream may be in the middle of a message, so close it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// This end has too many endpoints; nothing was sent.
    #[error(
        "{count} endpoints are too many for one exchange: exchange at most {} at a time",
        u16::MAX
    )]
    TooMany {
        /// The number of endpoints of this end.
        count: usize,
    },
    /// The same endpoint appears twice in a message, although a queue pair can connect to only one peer.
    #[error(
        "{whose} endpoints {first} and {second} are the same queue pair: prepare one for each connection"
    )]
    Used {
        /// The end that sent the message, as text.
        whose: &'static str,
        /// The first position.
        first: usize,
        /// The second position.
        second: usize,
    },
    /// The peer uses another protocol.
    #[error("the peer uses another protocol: it sent \"{}\" instead of \"{}\"; check that both ends run the \
        same program at the same step, and check the port", .received.escape_ascii(), .expected.escape_ascii())]
    Foreign {
        /// The first bytes that the peer sent.
        received: Vec<u8>,
        /// The expected beginning of a message.
        expected: Vec<u8>,
    },
    /// The peer uses another version of the exchange.
    #[error(
        "the peer uses version {found} of the exchange, but this program uses version {}: run the \
         same version at both ends",
        super::VERSION
    )]
    Version {
        /// The version of the peer.
        found: u16,
    },
    /// The ends have different numbers of endpoints.
    #[error(
        "the peer has {peer} endpoints to exchange, but this end has {own}: give both ends the \
         same number of connections"
    )]
    Count {
        /// The number of endpoints of this end.
        own: u16,
        /// The number of endpoints that the peer announced.
        peer: u16,
    },
    /// An endpoint of the peer is malformed, or has another version.
    #[error("endpoint {index} of the peer: {source}; run the same version at both ends")]
    Endpoint {
        /// The index of the endpoint, from 0.
        index: usize,
        /// The reason why the endpoint was rejected.
        source: EndpointError,
    },
    /// The peer's endpoint is this end's own queue pair.
    #[error(
        "endpoint {index} of the peer is this end's own: the peer echoes what it receives, or the stream \
        is connected to itself, as TCP can be when no process listens; check the address of the peer"
    )]
    Echo {
        /// The index of the endpoint, from 0.
        index: usize,
    },
    /// The peer closed the stream early.
    #[error(
        "the peer closed the stream early: {received} of {expected} bytes were received and {sent} sent; \
        the peer has failed or ended: check its own error"
    )]
    Closed {
        /// The number of bytes sent.
        sent: usize,
        /// The number of bytes received.
        received: usize,
        /// The total number of bytes in each direction.
        expected: usize,
    },
    /// The peer stalled.
    #[error(
        "the peer stalled: after {timeout:?}, {received} of {expected} bytes were received and {sent} sent; \
        check that the peer has reached the same step, or raise the timeout"
    )]
    Timeout {
        /// The time limit of this end.
        timeout: Duration,
        /// The number of bytes sent.
        sent: usize,
        /// The number of bytes received.
        received: usize,
        /// The total number of bytes in each direction.
        expected: usize,
    },
    /// The stream failed.
    #[error("the stream to the peer failed: {0}")]
    Io(#[from] io::Error),
}

rdma_types::debug_messages!(enum ExchangeError {
    TooMany { count }, Used { whose, first, second }, Foreign { received, expected },
    Version { found }, Count { own, peer }, Endpoint { index, source }, Echo { index },
    Closed { sent, received, expected }, Timeout { timeout, sent, received, expected }, Io(it),
});
