//! A client at the listener, from its first byte until the program has decided.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::{ConnectError, LONGEST, Message, Parsed, Told, VERSION, Wrong, parse};
use rdma_qp::QueuePairEndpoint;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::address::{StreamAddresses, addresses_of};
use super::files::Added;
use super::room::{FIRST_BYTE, Network, Occupant};
use super::until::Until;

/// What makes this end's queue pair for each client.
pub trait MakeEnds {
    /// A queue pair that is not connected.
    type Prepared;
    /// What is made of it.
    type End: fmt::Debug;

    /// A queue pair for the next client, with whom the stream has these addresses, and its endpoint.
    ///
    /// # Errors
    /// Why it gets none.
    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(Self::Prepared, QueuePairEndpoint), NoEnd>;

    /// Connects it to that of the client.
    ///
    /// # Errors
    /// If the queue pair cannot be connected to that one.
    fn connect(
        &self,
        prepared: Self::Prepared,
        peer: QueuePairEndpoint,
    ) -> Result<Self::End, rdma_qp::Error>;
}

/// Why a client gets no queue pair.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // not for programs
pub enum NoEnd {
    /// There are as many clients as there can be: what the client is told.
    Full(String),
    /// It cannot be made.
    Failed(rdma_qp::Error),
}

/// A client that is not connected yet.
pub(super) struct HalfOpen<E> {
    /// By which it is known while it waits.
    pub(super) key: u64,
    stream: Undecided,
    address: SocketAddr,
    /// How long it may take, and when that is over.
    limit: Duration,
    pub(super) until: Until,
    /// When the listener began to wait for its next message.
    since: Instant,
    received: Vec<u8>,
    /// What it was told the endpoint of, and what it has said.
    answered: Option<(E, Told)>,
}

/// What a step has made of a client.
pub(super) enum Step<E> {
    Open(HalfOpen<E>),
    /// It has sent its endpoint, and needs a queue pair.
    Hello(HalfOpen<E>, Box<QueuePairEndpoint>, Told),
    Connected(Candidate<E>),
    /// It has made a mistake, or is gone, and knows it: why.
    Refused(String),
    /// The server cannot take it, and it knows it.
    Failed(rdma_qp::Error),
}

/// A client that is connected, and that the program has not decided about.
pub struct Candidate<E> {
    pub(super) key: u64,
    // Told before the queue pair is destroyed.
    pub(super) stream: Undecided,
    /// Where it connected from.
    pub address: SocketAddr,
    /// What it has said.
    pub told: Told,
    /// This end.
    pub end: E,
}

/// A stream to a client, which is told that it was turned away unless it is told something else.
#[derive(Debug)]
pub(super) struct Undecided {
    added: Added,
    is_decided: bool,
}

/// Without what it said, which may be a secret.
impl<E: fmt::Debug> fmt::Debug for Candidate<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, told, end, .. } = self;
        write!(f, "client at {address}, {} user bytes, {end:?}", told.user_bytes.len())
    }
}

impl<E> HalfOpen<E> {
    pub(super) fn new(key: u64, added: Added, address: SocketAddr, limit: Duration) -> Self {
        let (stream, until) = (Undecided { added, is_decided: false }, Until::after(limit));
        let (since, received) = (Instant::now(), Vec::new());
        Self { key, stream, address, limit, until, since, received, answered: None }
    }

    /// What decides whether it goes when there is no room.
    pub(super) fn occupant(&self) -> Occupant {
        let is_mute = self.received.is_empty() && self.answered.is_none();
        Occupant { key: self.key, network: self.network(), since: self.since, is_mute }
    }

    pub(super) fn network(&self) -> Network {
        Network::of(self.address.ip())
    }

    /// The addresses of its stream.
    pub(super) fn stream_addresses(&self) -> StreamAddresses {
        addresses_of(&**self.stream.added.stream())
    }

    pub(super) const fn has_queue_pair(&self) -> bool {
        self.answered.is_some()
    }

    /// Returns true if it has sent something, or ended, and the listener has not looked yet: then it is the listener who
    /// is late.
    pub(super) fn has_unread(&self) -> bool {
        let peek = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        !matches!(
            recv(&**self.stream.added.stream(), &mut [0], peek),
            Err(Errno::AGAIN | Errno::INTR)
        )
    }

    /// Receives what has come.
    pub(super) fn step(mut self) -> Step<E> {
        match self.read() {
            Ok(None) => Step::Open(self),
            Ok(Some(message)) => self.take(message),
            Err(Some(why)) => {
                self.stream.reject(&why);
                Step::Refused(self.about(&why))
            }
            Err(None) => {
                self.stream.is_decided = true;
                Step::Refused(self.about("it has ended early, or speaks something else"))
            }
        }
    }

    /// Ends it, since its time is over.
    pub(super) fn expire(mut self) -> String {
        let limit = self.limit;
        let why = format!("the client did not do its part of the rendezvous within {limit:?}");
        self.stream.reject(&why);
        self.about(&why)
    }

    /// Ends it, since another client needs its room.
    pub(super) fn evict(mut self) -> String {
        let waited = self.since.elapsed();
        let sent = match self.occupant().is_mute {
            true if waited >= FIRST_BYTE => "had sent nothing",
            _ => "had not finished the rendezvous",
        };
        let why = format!(
            "the client {sent} after {waited:.0?} and had to make room for others, since too many connect at a time: \
             connect again"
        );
        self.stream.refuse(Message::Busy(why.as_str().into()));
        self.about(&why)
    }

    fn about(&self, why: &str) -> String {
        format!("{}: {why}", self.address)
    }

    /// A message if one is whole; else what the client is to be told, if anything.
    fn read(&mut self) -> Result<Option<Message>, Option<String>> {
        // One byte more than a message has, to see whether there is one.
        let mut block = [0; LONGEST + 1];
        let room = block.get_mut(self.received.len()..).unwrap_or_default();
        match recv(&**self.stream.added.stream(), &mut *room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(None),
            Ok((count, _)) => self.received.extend(room.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Err(None),
        }
        match parse(&self.received) {
            Ok(Parsed::Lacks(_)) => Ok(None),
            Ok(Parsed::Whole(message)) => {
                self.received.clear();
                Ok(Some(message))
            }
            // Who speaks something else does not understand the reason either.
            Err(Wrong::Foreign(_)) => Err(None),
            Err(Wrong::Version(found)) => Err(Some(format!(
                "the client has version {found} of the rendezvous, the server {VERSION}: run the same version at \
                 both ends"
            ))),
            Err(wrong) => Err(Some(not_kept(&wrong))),
        }
    }

    fn take(mut self, message: Message) -> Step<E> {
        match (message, self.answered.take()) {
            (Message::Hello(endpoint, told), None) => Step::Hello(self, endpoint, told),
            (Message::Ready, Some((end, told))) => {
                let Self { key, stream, address, .. } = self;
                Step::Connected(Candidate { key, stream, address, told, end })
            }
            (other, _) => {
                let why = not_kept(&Wrong::Kind(other.kind()));
                self.stream.reject(&why);
                Step::Refused(self.about(&why))
            }
        }
    }

    /// Ends it, since there is no queue pair for it.
    pub(super) fn turn_away(mut self, no_end: NoEnd) -> Step<E> {
        match no_end {
            NoEnd::Full(why) => {
                self.stream.refuse(Message::Busy(why.as_str().into()));
                Step::Refused(self.about(&why))
            }
            NoEnd::Failed(error) => {
                let why = format!("it has made no queue pair: {error}");
                self.stream.refuse(Message::Busy(why.into()));
                Step::Failed(error)
            }
        }
    }

    /// Connects a queue pair to that of the client, and sends it the endpoint.
    pub(super) fn answer<M: MakeEnds<End = E>>(
        mut self,
        maker: &M,
        (prepared, endpoint): (M::Prepared, QueuePairEndpoint),
        peer: QueuePairEndpoint,
        told: Told,
    ) -> Step<E> {
        match maker.connect(prepared, peer) {
            Ok(end) => self.answered = Some((end, told)),
            Err(error) => {
                let why =
                    format!("the server's queue pair cannot connect to the client's: {error}");
                self.stream.reject(&why);
                return Step::Refused(self.about(&why));
            }
        }
        // The program may have been elsewhere when it came.
        (self.since, self.until) = (Instant::now(), Until::after(self.limit));
        match self.stream.say(&Message::Endpoint(Box::new(endpoint))) {
            Ok(()) => Step::Open(self),
            Err(_) => Step::Refused(self.about("it has ended early")),
        }
    }
}

fn not_kept(wrong: &Wrong) -> String {
    format!(
        "the client does not keep to the rendezvous: {wrong}; run the same version at both ends"
    )
}

impl<E> fmt::Debug for HalfOpen<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client at {}", self.address)
    }
}

impl<E> Candidate<E> {
    /// The listener waits for its stream no longer, which it does as long as the program decides within a call of its own.
    pub fn leave(&self) {
        self.stream.added.leave();
    }

    /// Its stream, to be kept.
    pub fn stream(&self) -> &Arc<OwnedFd> {
        self.stream.added.stream()
    }

    /// The same, among the files of the listener.
    pub(crate) const fn added(&self) -> &Added {
        &self.stream.added
    }

    /// Turns it away, for that reason.
    pub fn reject(&mut self, why: &str) {
        self.stream.reject(why);
    }

    /// Whether it still waits for the program to decide.
    ///
    /// # Errors
    /// What it has done instead.
    pub fn check(&mut self) -> Result<(), ConnectError> {
        let address = self.address;
        match recv(&**self.stream.added.stream(), &mut [0], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok((1.., _)) => {
                let what = "the client spoke before it was answered";
                self.stream.reject(what);
                Err(ConnectError::Garbled { address, what: what.into() })
            }
            _ => Err(ConnectError::Closed { address, awaited: "it was accepted" }),
        }
    }

    /// Tells it that it is accepted, and what becomes of the stream: if this end watches it, both ends keep it.
    ///
    /// # Errors
    /// [`ConnectError::Closed`] if it is gone.
    pub fn accept(&mut self, told: Told) -> Result<(), ConnectError> {
        let Self { stream, address, .. } = self;
        stream.is_decided = true;
        let said = stream.say(&Message::Accept(told));
        said.map_err(|_| ConnectError::Closed { address: *address, awaited: "it was accepted" })
    }
}

impl Undecided {
    /// Whoever is gone is not told, and that is nobody's failure.
    pub(super) fn reject(&mut self, why: &str) {
        self.refuse(Message::Reject(why.into()));
    }

    fn refuse(&mut self, message: Message) {
        self.is_decided = true;
        let _ = self.say(&message);
        // Bytes that nobody has read would reset the stream when it is closed, maybe before the reason is read.
        let _ = recv(&**self.added.stream(), &mut [0; LONGEST], RecvFlags::DONTWAIT);
    }

    /// Never waits: a socket has space for the few bytes of both messages that it is ever given.
    fn say(&self, message: &Message) -> io::Result<()> {
        let bytes = message.to_bytes();
        match send(&**self.added.stream(), &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        if !self.is_decided && self.added.is_of_this_process() {
            self.reject(
                "the program of the server has turned the client away, and did not say why",
            );
        }
    }
}
