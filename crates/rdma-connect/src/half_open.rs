//! A client of the listener, from its first byte until the program has accepted or rejected it.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process;
use std::time::{Duration, Instant};

use rdma_qp::QueuePairEndpoint;

use crate::dial::StreamAddresses;
use crate::error::connect_error::ConnectError;
use crate::message::{
    CLIENT_DEVICE, Greeting, LONGEST, Message, Parsed, SERVER_DEVICE, UNFIT, VERSION, Wrong, parse,
};
use crate::room::{FIRST_BYTE, Network, Occupant};
use crate::until::Until;

/// The stream of a client, implemented by drivers. No call blocks.
pub trait ClientStream {
    /// Receives the available bytes into the buffer. Returns 0 if the client has ended the stream.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] or [`ErrorKind::Interrupted`] if no byte is available; other errors if the stream
    /// failed.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Peeks at one byte, which stays in the stream. Returns 0 if the client has ended the stream.
    ///
    /// # Errors
    /// Same errors as [`receive`](Self::receive).
    fn peek(&self) -> io::Result<usize>;

    /// Sends as many bytes as fit into the stream's buffer.
    ///
    /// # Errors
    /// Returns an error if no byte can be sent.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Closes this end's direction of the stream, after the bytes already sent.
    ///
    /// # Errors
    /// Returns an error if the stream failed.
    fn end_sending(&self) -> io::Result<()>;
}

/// The placeholder in error messages for a device that the client did not name.
const UNNAMED: &str = "unknown";

/// Creates this end's queue pair for each client.
pub trait MakeEnds {
    /// A queue pair that is not connected.
    type Prepared;
    /// A connected queue pair, with the rest of its connection.
    type Connected: fmt::Debug;

    /// Creates a queue pair for the next client, whose stream has these addresses. Returns the queue pair and its
    /// endpoint.
    ///
    /// # Errors
    /// Returns the reason why there is no queue pair.
    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(Self::Prepared, QueuePairEndpoint), NoEnd>;

    /// Returns the name of the device on which the queue pairs are created.
    fn device(&self) -> String;

    /// Connects the queue pair to the client's.
    ///
    /// # Errors
    /// Returns an error if the two queue pairs cannot be connected.
    fn connect(
        &self,
        prepared: Self::Prepared,
        peer: QueuePairEndpoint,
    ) -> Result<Self::Connected, rdma_qp::Error>;

    /// Creates a queue pair for a client and connects it. Returns this end of the connection and its endpoint. If the
    /// queue pair cannot be created but `make_room` returns true, tries again.
    ///
    /// # Errors
    /// Returns the reason why there is no queue pair.
    fn make(
        &self,
        stream: StreamAddresses,
        peer: QueuePairEndpoint,
        make_room: impl FnOnce() -> bool,
    ) -> Result<(Self::Connected, QueuePairEndpoint), NoEnd> {
        let mut prepared = self.prepare(stream);
        if prepared.is_err() && make_room() {
            prepared = self.prepare(stream);
        }
        let (prepared, endpoint) = prepared?;
        let connected = self.connect(prepared, peer);
        let end = connected.map_err(|error| NoEnd::Unfit(error, self.device()))?;
        Ok((end, endpoint))
    }
}

/// The reason why a client gets no queue pair.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // drivers handle each
pub enum NoEnd {
    /// The server has its maximum number of clients. The text is sent to the client.
    Full(String),
    /// The queue pair cannot be created.
    Failed(rdma_qp::Error),
    /// The queue pair cannot be connected to the client's. The string is the name of the queue pair's device.
    Unfit(rdma_qp::Error, String),
}

/// A client that has sent its endpoint and needs a queue pair.
pub struct Hello<S: ClientStream, E> {
    pub(crate) client: HalfOpen<S, E>,
    endpoint: Box<QueuePairEndpoint>,
    greeting: Greeting,
}

/// A client that is not connected yet.
pub(crate) struct HalfOpen<S: ClientStream, E> {
    /// The driver's key for the client.
    pub(crate) key: u64,
    pub(crate) stream: Undecided<S>,
    address: SocketAddr,
    stream_addresses: StreamAddresses,
    /// The time limit for the client's side of the rendezvous.
    limit: Duration,
    pub(crate) until: Until,
    /// The time at which the listener started to wait for the client's next message.
    since: Instant,
    received: Vec<u8>,
    /// This end of the connection and the client's greeting. Set when this end's endpoint is sent to the client.
    answered: Option<(E, Greeting)>,
    /// The reason why the client is rejected. Set while the listener still waits for the name of the client's device.
    unfit: Option<String>,
}

/// The state of a client after a step.
pub(crate) enum Step<S: ClientStream, E> {
    Open(HalfOpen<S, E>),
    Hello(Hello<S, E>),
    Connected(Candidate<S, E>),
    /// The client is gone, or the listener has turned it away. The text is the reason.
    Refused(String),
    /// The server could not create a queue pair. The client was notified.
    Failed(rdma_qp::Error),
}

/// A connected client that waits for the program to accept or reject it.
pub struct Candidate<S: ClientStream, E> {
    pub(crate) key: u64,
    // Dropped first, which notifies the client before the queue pair is destroyed.
    pub(crate) stream: Undecided<S>,
    /// The address from which the client connected.
    pub address: SocketAddr,
    /// The client's greeting.
    pub greeting: Greeting,
    /// This end of the connection.
    pub end: E,
}

/// A stream to a client. If it is dropped before the program has decided, it sends a rejection to the client.
#[derive(Debug)]
pub(crate) struct Undecided<S: ClientStream> {
    /// `None` after the decision.
    stream: Option<S>,
    /// The process that created this. A forked child shares the stream and must not use it.
    process: u32,
}

/// Prints only the number of user bytes, because they may be secret.
impl<S: ClientStream, E: fmt::Debug> fmt::Debug for Candidate<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, greeting, end, .. } = self;
        write!(f, "client at {address}, {} user bytes, {end:?}", greeting.user_bytes.len())
    }
}

impl<S: ClientStream, E> HalfOpen<S, E> {
    pub(crate) fn new(
        key: u64,
        stream: S,
        (address, stream_addresses): (SocketAddr, StreamAddresses),
        limit: Duration,
        now: Instant,
    ) -> Self {
        let (stream, until) = (Undecided::new(stream), Until::after(now, limit));
        let (since, received, answered) = (now, Vec::new(), None);
        Self {
            key,
            stream,
            address,
            stream_addresses,
            limit,
            until,
            since,
            received,
            answered,
            unfit: None,
        }
    }

    /// Returns the facts that determine whether this client is dropped when there is no room.
    pub(crate) fn occupant(&self) -> Occupant {
        let is_mute = self.received.is_empty() && self.answered.is_none();
        Occupant { key: self.key, network: self.network(), since: self.since, is_mute }
    }

    pub(crate) fn network(&self) -> Network {
        Network::of(self.address.ip())
    }

    pub(crate) const fn has_queue_pair(&self) -> bool {
        self.answered.is_some()
    }

    /// Returns true if the client has sent data or ended the stream, and the listener has not read this yet. In that
    /// case the listener is late, not the client.
    pub(crate) fn has_unread(&self) -> bool {
        !self.stream.is_quiet()
    }

    /// Receives available bytes, and handles the message once it is complete.
    pub(crate) fn step(mut self) -> Step<S, E> {
        let message = self.read();
        if let Some(why) = self.unfit.take() {
            return match message {
                Ok(None) => Step::Open(Self { unfit: Some(why), ..self }),
                Ok(Some(Message::Device(name))) => Step::Refused(self.end_unfit(&why, &name)),
                Ok(Some(_)) | Err(_) => Step::Refused(self.end_unfit(&why, UNNAMED)),
            };
        }
        match message {
            Ok(None) => Step::Open(self),
            Ok(Some(message)) => self.take(message),
            Err(Some(why)) => {
                self.stream.reject(&why);
                Step::Refused(self.about(&why))
            }
            Err(None) => {
                drop(self.stream.stream.take());
                Step::Refused(self.about("it has ended early, or uses another protocol"))
            }
        }
    }

    /// Ends the client because its time limit has expired.
    pub(crate) fn expire(mut self) -> String {
        if let Some(why) = self.unfit.take() {
            return self.end_unfit(&why, UNNAMED);
        }
        let limit = self.limit;
        let why =
            format!("the client did not complete its part of the rendezvous within {limit:?}");
        self.stream.reject(&why);
        self.about(&why)
    }

    /// Ends the client to make room for another one.
    pub(crate) fn evict(mut self, now: Instant) -> String {
        if let Some(why) = self.unfit.take() {
            return self.end_unfit(&why, UNNAMED);
        }
        let waited = self.occupant().waited(now);
        let sent = match self.occupant().is_mute {
            true if waited >= FIRST_BYTE => "had sent nothing",
            _ => "had not finished the rendezvous",
        };
        let why = format!(
            "the client {sent} after {waited:.0?} and had to make room for others, since too many \
             connect at the same time: connect again"
        );
        self.stream.refuse(&Message::Busy(why.as_str().into()));
        self.about(&why)
    }

    /// Ends the client after its rejection was sent.
    fn end_unfit(mut self, why: &str, device: &str) -> String {
        drop(self.stream.stream.take());
        self.about(&format!("{why}{CLIENT_DEVICE}{device}"))
    }

    fn about(&self, why: &str) -> String {
        format!("{}: {why}", self.address)
    }

    /// Returns a message once it is complete. The error contains the reason to send to the client, if any.
    fn read(&mut self) -> Result<Option<Message>, Option<String>> {
        // Room for one more byte than a message, to detect excess bytes.
        let mut block = [0; LONGEST + 1];
        let room = block.get_mut(self.received.len()..).unwrap_or_default();
        match self.stream.stream.as_ref().ok_or(None)?.receive(room) {
            Ok(0) => return Err(None),
            Ok(count) => self.received.extend(room.get(..count).unwrap_or_default()),
            Err(error) if is_nothing(&error) => return Ok(None),
            Err(_) => return Err(None),
        }
        match parse(&self.received) {
            Ok(Parsed::Lacks(_)) => Ok(None),
            Ok(Parsed::Whole(message)) => {
                self.received.clear();
                Ok(Some(message))
            }
            // A client that uses another protocol would not understand the reason either.
            Err(Wrong::Foreign(_)) => Err(None),
            Err(Wrong::Version(found)) => Err(Some(format!(
                "the client has version {found} of the rendezvous, but the server has {VERSION}: \
                 run the same version at both ends"
            ))),
            Err(wrong) => Err(Some(not_kept(&wrong))),
        }
    }

    fn take(mut self, message: Message) -> Step<S, E> {
        match (message, self.answered.take()) {
            (Message::Hello(endpoint, greeting), None) => {
                Step::Hello(Hello { client: self, endpoint, greeting })
            }
            (Message::Ready, Some((end, greeting))) => {
                let Self { key, stream, address, .. } = self;
                Step::Connected(Candidate { key, stream, address, greeting, end })
            }
            (other, _) => {
                let why = not_kept(&Wrong::Kind(other.kind()));
                self.stream.reject(&why);
                Step::Refused(self.about(&why))
            }
        }
    }

    /// Turns the client away because it gets no queue pair.
    fn turn_away(mut self, no_end: NoEnd) -> Step<S, E> {
        match no_end {
            NoEnd::Full(why) => {
                self.stream.refuse(&Message::Busy(why.as_str().into()));
                Step::Refused(self.about(&why))
            }
            NoEnd::Failed(error) => {
                let why = format!("it cannot create a queue pair: {error}");
                self.stream.refuse(&Message::Busy(why.into()));
                Step::Failed(error)
            }
            NoEnd::Unfit(error, device) => {
                let why = format!("{UNFIT}{SERVER_DEVICE}{device}; {error}");
                match self.stream.send_last(&Message::Reject(why.as_str().into())) {
                    Ok(()) => Step::Open(Self { unfit: Some(why), ..self }),
                    Err(_) => Step::Refused(self.end_unfit(&why, UNNAMED)),
                }
            }
        }
    }
}

impl<S: ClientStream, E> Hello<S, E> {
    /// Returns the addresses of the client's stream.
    pub const fn stream_addresses(&self) -> StreamAddresses {
        self.client.stream_addresses
    }

    /// Returns the client's endpoint.
    pub fn endpoint(&self) -> QueuePairEndpoint {
        *self.endpoint
    }

    /// Returns the tracing span for serving the client: `answer`, with the client's address.
    pub fn span(&self) -> tracing::Span {
        tracing::debug_span!("answer", client = %self.client.address)
    }

    /// Sends the client the endpoint of its queue pair, or the reason why there is none.
    pub(crate) fn answer(
        self,
        made: Result<(E, QueuePairEndpoint), NoEnd>,
        now: Instant,
    ) -> Step<S, E> {
        let Self { mut client, greeting, .. } = self;
        let (end, endpoint) = match made {
            Ok(made) => made,
            Err(no_end) => return client.turn_away(no_end),
        };
        client.answered = Some((end, greeting));
        // The driver may have been late to process the client's message, so the client's time restarts here.
        (client.since, client.until) = (now, Until::after(now, client.limit));
        match client.stream.send(&Message::Endpoint(Box::new(endpoint))) {
            Ok(()) => Step::Open(client),
            Err(_) => Step::Refused(client.about("it has ended early")),
        }
    }
}

fn not_kept(wrong: &Wrong) -> String {
    format!(
        "the client does not follow the rendezvous protocol: {wrong}; run the same version at \
         both ends"
    )
}

impl<S: ClientStream, E> fmt::Debug for Hello<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client at {}", self.client.address)
    }
}

impl<S: ClientStream, E> Candidate<S, E> {
    /// Rejects the client with this reason.
    pub fn reject(&mut self, why: &str) {
        self.stream.reject(why);
    }

    /// Checks that the client still waits for the decision, and accepts it. Returns its stream, which both ends keep if
    /// either of them watches it.
    ///
    /// # Errors
    /// [`ConnectError::Closed`] if the client is gone, [`ConnectError::Garbled`] if it has sent data.
    pub fn accept(&mut self, greeting: Greeting) -> Result<S, ConnectError> {
        self.check()?;
        let sent = self.stream.send(&Message::Accept(greeting));
        let stream = self.stream.stream.take();
        sent.ok().and(stream).ok_or_else(|| self.closed())
    }

    /// Checks that the client still waits for the program's decision.
    pub(crate) fn check(&mut self) -> Result<(), ConnectError> {
        match self.stream.stream.as_ref().map(ClientStream::peek) {
            Some(Err(error)) if is_nothing(&error) => Ok(()),
            Some(Ok(1..)) => {
                let what = "the client sent data before it was answered";
                self.stream.reject(what);
                Err(ConnectError::Garbled { address: self.address, what: what.into() })
            }
            _ => Err(self.closed()),
        }
    }

    const fn closed(&self) -> ConnectError {
        ConnectError::Closed { address: self.address, awaited: "it was accepted" }
    }
}

impl<S: ClientStream> Undecided<S> {
    fn new(stream: S) -> Self {
        Self { stream: Some(stream), process: process::id() }
    }

    pub(crate) const fn get(&self) -> Option<&S> {
        self.stream.as_ref()
    }

    /// Returns true if the stream has not ended and no byte is available.
    fn is_quiet(&self) -> bool {
        let peeked = self.stream.as_ref().map(ClientStream::peek);
        matches!(peeked, Some(Err(error)) if is_nothing(&error))
    }

    fn reject(&mut self, why: &str) {
        self.refuse(&Message::Reject(why.into()));
    }

    /// Sends the last message. It is not an error if the client is gone and cannot receive the message.
    fn refuse(&mut self, message: &Message) {
        let _ = self.send(message);
        if let Some(stream) = self.stream.take() {
            // Reads the unread bytes, because closing a socket with unread bytes resets the stream, possibly before the
            // client has read the reason.
            let _ = stream.receive(&mut [0; LONGEST]);
        }
    }

    /// Sends the last message, but keeps the stream to receive from it.
    fn send_last(&self, message: &Message) -> io::Result<()> {
        self.send(message)?;
        self.stream.as_ref().map_or(Ok(()), ClientStream::end_sending)
    }

    /// Sends a message. Never blocks, because a socket has space for the few bytes of the two messages that the
    /// listener sends.
    fn send(&self, message: &Message) -> io::Result<()> {
        let bytes = message.to_bytes();
        match self.stream.as_ref().map_or(Ok(0), |stream| stream.send(&bytes))? {
            count if count == bytes.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }
}

impl<S: ClientStream> Drop for Undecided<S> {
    fn drop(&mut self) {
        if self.stream.is_some() && self.process == process::id() {
            self.reject("the server's program has turned the client away, and gave no reason");
        }
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
