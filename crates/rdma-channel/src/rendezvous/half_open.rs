//! A client at the listener, from its first byte until the program has decided.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rdma_qp::QueuePairEndpoint;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::error::ConnectError;
use super::message::{LONGEST, Message, Parsed, Told, VERSION, Wrong, parse};
use super::until::Until;
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::channel::prepared::PreparedChannel;
use crate::ledger::watch::Watch;

/// A client that is not connected yet.
pub(super) struct HalfOpen {
    stream: Undecided,
    address: SocketAddr,
    /// How long it may take, and when that is over.
    limit: Duration,
    pub(super) until: Until,
    received: Vec<u8>,
    /// The channel that it was told the endpoint of, and what it has said.
    answered: Option<(Channel, Told)>,
}

/// What a step has made of a client.
pub(super) enum Step {
    Open(HalfOpen),
    Connected(Candidate),
    /// It has made a mistake, or is gone, and knows it: why.
    Refused(String),
    /// The server cannot take it, and it knows it.
    Failed(rdma_qp::Error),
}

/// A client that is connected, and that the program has not decided about.
pub(super) struct Candidate {
    // Told before the channel is destroyed.
    pub(super) stream: Undecided,
    pub(super) address: SocketAddr,
    pub(super) told: Told,
    pub(super) channel: Channel,
}

/// A stream to a client, which is told that it was turned away unless it is told something else.
#[derive(Debug)]
pub(super) struct Undecided {
    /// For a channel that keeps it, too.
    stream: Arc<OwnedFd>,
    is_decided: bool,
}

/// Without what it said, which may be a secret.
impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, told, channel, .. } = self;
        write!(f, "client at {address}, {} user bytes, {channel:?}", told.user_bytes.len())
    }
}

impl HalfOpen {
    pub(super) fn new(stream: TcpStream, address: SocketAddr, limit: Duration) -> Self {
        let stream = Undecided { stream: Arc::new(stream.into()), is_decided: false };
        let until = Until::after(limit);
        Self { stream, address, limit, until, received: Vec::new(), answered: None }
    }

    /// Takes what has come.
    pub(super) fn step(mut self, options: &Options) -> Step {
        match self.read() {
            Ok(None) => Step::Open(self),
            Ok(Some(message)) => self.take(message, options),
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

    fn about(&self, why: &str) -> String {
        format!("{}: {why}", self.address)
    }

    /// A message if one is whole; else what the client is to be told, if anything.
    fn read(&mut self) -> Result<Option<Message>, Option<String>> {
        // One byte more than a message has, to see whether there is one.
        let mut block = [0; LONGEST + 1];
        let room = block.get_mut(self.received.len()..).unwrap_or_default();
        match recv(&self.stream.stream, &mut *room, RecvFlags::DONTWAIT) {
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

    fn take(mut self, message: Message, options: &Options) -> Step {
        match (message, self.answered.take()) {
            (Message::Hello(endpoint, told), None) => self.answer(*endpoint, told, options),
            (Message::Ready, Some((channel, told))) => {
                let Self { stream, address, .. } = self;
                Step::Connected(Candidate { stream, address, told, channel })
            }
            (other, _) => {
                let why = not_kept(&Wrong::Kind(other.kind()));
                self.stream.reject(&why);
                Step::Refused(self.about(&why))
            }
        }
    }

    /// Connects a queue pair to that of the client, and tells it.
    fn answer(mut self, peer: QueuePairEndpoint, told: Told, options: &Options) -> Step {
        let prepared = match PreparedChannel::new(options) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.stream.reject(&format!("the server cannot make a queue pair: {error}"));
                return Step::Failed(error);
            }
        };
        let endpoint = prepared.endpoint();
        match prepared.handshake(peer) {
            Ok(channel) => self.answered = Some((channel, told)),
            Err(error) => {
                let why =
                    format!("the server's queue pair cannot connect to the client's: {error}");
                self.stream.reject(&why);
                return Step::Refused(self.about(&why));
            }
        }
        // Nobody may have looked when it came, since the program was elsewhere.
        self.until = Until::after(self.limit);
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

impl AsFd for HalfOpen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.stream.as_fd()
    }
}

impl fmt::Debug for HalfOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client at {}", self.address)
    }
}

impl Candidate {
    /// Whether it still waits for the program to decide, or what it has done instead.
    pub(super) fn check(&mut self) -> Result<(), ConnectError> {
        let address = self.address;
        match recv(&self.stream.stream, &mut [0], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok((1.., _)) => {
                let what = "the client spoke before it was answered";
                self.stream.reject(what);
                Err(ConnectError::Garbled { address, what: what.into() })
            }
            _ => Err(ConnectError::Closed { address, awaited: "it was accepted" }),
        }
    }

    /// Gives out the channel, which keeps the stream if one of both ends watches it.
    pub(super) fn accept(
        self,
        user_bytes: &[u8],
        watch: Option<Duration>,
    ) -> Result<Channel, ConnectError> {
        let Self { mut stream, address, told, mut channel } = self;
        stream.is_decided = true;
        if told.watches || watch.is_some() {
            channel.ledger.watch = Some(Box::new(Watch::new(&stream.stream, watch)));
        }
        let told = Told { user_bytes: user_bytes.into(), watches: watch.is_some() };
        match stream.say(&Message::Accept(told)) {
            Ok(()) => Ok(channel),
            Err(_) => Err(ConnectError::Closed { address, awaited: "it was accepted" }),
        }
    }
}

impl AsFd for Candidate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.stream.as_fd()
    }
}

impl Undecided {
    /// Whoever is gone is not told, and that is nobody's failure.
    pub(super) fn reject(&mut self, why: &str) {
        self.is_decided = true;
        let _ = self.say(&Message::Reject(why.into()));
        // Bytes that nobody has read would reset the stream when it is closed, maybe before the reason is read.
        let _ = recv(&self.stream, &mut [0; LONGEST], RecvFlags::DONTWAIT);
    }

    /// Never waits: a socket has space for the few bytes of both messages that it is ever given.
    fn say(&self, message: &Message) -> io::Result<()> {
        let bytes = message.to_bytes();
        match send(&self.stream, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        if !self.is_decided {
            self.reject(
                "the program of the server has turned the client away, and did not say why",
            );
        }
    }
}
