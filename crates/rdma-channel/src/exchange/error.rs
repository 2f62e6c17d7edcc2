//! Why endpoints could not be exchanged.

use std::io;
use std::time::Duration;

use rdma_qp::EndpointError;

/// Why this end and its peer could not tell each other their endpoints.
///
/// After any of these the position of the stream in its message is unknown: close the stream.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// This end has too many endpoints; nothing was sent.
    #[error(
        "{count} endpoints are too many for one exchange: exchange at most {} at a time",
        u16::MAX
    )]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// The same endpoint stands in a message twice: a queue pair connects to one peer only.
    #[error(
        "{whose} endpoints {first} and {second} are the same queue pair: prepare one for each connection"
    )]
    Used {
        /// The end whose message it is, in words.
        whose: &'static str,
        /// Its first position.
        first: usize,
        /// Its second position.
        second: usize,
    },
    /// The peer speaks something else.
    #[error("the peer speaks something else: it began with \"{}\", not \"{}\"; is it the same program, \
        at the same step, and is this its port?", .received.escape_ascii(), .expected.escape_ascii())]
    Foreign {
        /// The first bytes of what it said.
        received: Vec<u8>,
        /// What a message begins with.
        expected: Vec<u8>,
    },
    /// The peer has another version of the exchange.
    #[error(
        "the peer exchanges endpoints by version {found}, this program by version {}: run the same \
        version at both ends",
        super::VERSION
    )]
    Version {
        /// The version of the peer.
        found: u16,
    },
    /// The ends have different numbers of endpoints.
    #[error(
        "the peer has {peer} endpoints to exchange, this end {own}: give both ends the same number of \
        connections"
    )]
    Count {
        /// How many this end has.
        own: u16,
        /// How many the peer announces.
        peer: u16,
    },
    /// An endpoint of the peer is malformed, or of another version.
    #[error("endpoint {index} of the peer: {source}; run the same version at both ends")]
    Endpoint {
        /// Which one, from 0.
        index: usize,
        /// What is wrong with it.
        source: EndpointError,
    },
    /// The peer is this end's own queue pair.
    #[error(
        "endpoint {index} of the peer is this end's own: the peer sends back what it is sent, or the \
        stream leads to itself, as TCP does at times where nobody listens"
    )]
    Echo {
        /// Which one, from 0.
        index: usize,
    },
    /// The peer closed the stream early.
    #[error(
        "the peer closed the stream early: {received} of {expected} bytes came, {sent} were sent; it \
        has failed or ended, what does it say itself?"
    )]
    Closed {
        /// How many bytes were sent.
        sent: usize,
        /// How many bytes came.
        received: usize,
        /// How many there are in each direction.
        expected: usize,
    },
    /// The peer stalled.
    #[error(
        "the peer stalled: after {timeout:?}, {received} of {expected} bytes came, {sent} were sent; \
        has it come to the same step? If it needs longer for it, raise the timeout"
    )]
    Timeout {
        /// The deadline of this end.
        timeout: Duration,
        /// How many bytes were sent.
        sent: usize,
        /// How many bytes came.
        received: usize,
        /// How many there are in each direction.
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
