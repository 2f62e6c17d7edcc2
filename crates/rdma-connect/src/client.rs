//! The client's side of the rendezvous.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use rdma_qp::QueuePairEndpoint;

use crate::error::connect_error::ConnectError;
use crate::message::{
    CLIENT_DEVICE, Greeting, Message, PREFACE, Parsed, SERVER_DEVICE, UNFIT, Wrong, parse,
};

/// The client's side of the conversation with its server.
///
/// A driver sends [`hello`](Self::hello) and passes received bytes to [`answer`](Self::answer). It then connects its
/// queue pair, sends [`ready`](Self::ready), and passes received bytes to [`verdict`](Self::verdict). It receives at
/// most [`lacks`](Self::lacks) bytes at a time, so that it never receives a byte after the verdict. After an error it
/// sends the [`last_message`](Self::last_message), if there is one.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    limit: Duration,
    /// The name of the device.
    device: Box<str>,
    received: Vec<u8>,
    lacks: usize,
    is_answered: bool,
    /// Whether the server's queue pair cannot be connected to this end's.
    is_unfit: bool,
}

impl Client {
    /// Starts a conversation with the server at this address, for a queue pair of this device. Error messages contain
    /// the limit, and the name of the device if it does not match the server's device.
    #[must_use]
    pub fn new(address: SocketAddr, limit: Duration, device: &str) -> Self {
        let (device, received, lacks) = (device.into(), Vec::new(), PREFACE);
        Self { address, limit, device, received, lacks, is_answered: false, is_unfit: false }
    }

    /// Returns the first message to the server.
    #[must_use]
    pub fn hello(&self, endpoint: QueuePairEndpoint, greeting: Greeting) -> Vec<u8> {
        Message::Hello(Box::new(endpoint), greeting).to_bytes()
    }

    /// Returns the message that announces to the server that this end's queue pair is connected.
    #[must_use]
    pub fn ready(&self) -> Vec<u8> {
        Message::Ready.to_bytes()
    }

    /// Returns the message that names this end's device to a server whose device does not match. `None` after other
    /// errors.
    #[must_use]
    pub fn last_message(&self) -> Option<Vec<u8>> {
        self.is_unfit.then(|| Message::Device(self.device.clone()).to_bytes())
    }

    /// Returns the minimum number of bytes still missing from the next message.
    #[must_use]
    pub const fn lacks(&self) -> usize {
        self.lacks
    }

    /// Accepts received bytes; an empty slice means the end of the stream. Returns the server's endpoint once it is
    /// complete.
    ///
    /// # Errors
    /// Returns an error if the server refused this client, closed the stream, or uses another protocol.
    pub fn answer(&mut self, bytes: &[u8]) -> Result<Option<QueuePairEndpoint>, ConnectError> {
        match self.receive(bytes)? {
            None => Ok(None),
            Some(Message::Endpoint(endpoint)) => {
                self.is_answered = true;
                Ok(Some(*endpoint))
            }
            Some(other) => Err(self.wrong(Wrong::Kind(other.kind()))),
        }
    }

    /// Accepts received bytes; an empty slice means the end of the stream. Returns the greeting of the server's program
    /// once it has accepted this client.
    ///
    /// # Errors
    /// Same errors as [`answer`](Self::answer).
    pub fn verdict(&mut self, bytes: &[u8]) -> Result<Option<Greeting>, ConnectError> {
        match self.receive(bytes)? {
            None => Ok(None),
            Some(Message::Accept(greeting)) => Ok(Some(greeting)),
            Some(other) => Err(self.wrong(Wrong::Kind(other.kind()))),
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Option<Message>, ConnectError> {
        if bytes.is_empty() {
            return Err(self.closed());
        }
        self.received.extend(bytes);
        match parse(&self.received) {
            Ok(Parsed::Lacks(lacks)) => {
                self.lacks = lacks;
                Ok(None)
            }
            Ok(Parsed::Whole(message)) => {
                self.received.clear();
                self.lacks = PREFACE;
                match message {
                    Message::Reject(why) if why.starts_with(UNFIT) => Err(self.unfit(&why)),
                    Message::Reject(why) => Err(ConnectError::Rejected(why)),
                    Message::Busy(why) => Err(ConnectError::Busy(why)),
                    message => Ok(Some(message)),
                }
            }
            Err(wrong) => Err(self.wrong(wrong)),
        }
    }

    /// Returns the error for a queue pair that the server rejected because it does not match. A server of an earlier
    /// version does not name its device.
    fn unfit(&mut self, why: &str) -> ConnectError {
        self.is_unfit = true;
        let reason = why.strip_prefix(UNFIT).unwrap_or(why);
        let server = match reason.starts_with(SERVER_DEVICE) {
            true => String::new(),
            false => format!("{SERVER_DEVICE}unknown; "),
        };
        let text = format!("{UNFIT}{server}{reason}{CLIENT_DEVICE}{}", self.device);
        ConnectError::Rejected(text.into())
    }

    /// Converts the error of a failed send.
    ///
    /// # Errors
    /// Returns the error unless the server closed the stream. In that case the server's reason may still be received.
    pub fn not_sent(&self, error: io::Error) -> Result<(), ConnectError> {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(()),
            _ => Err(self.failed("sending to", error)),
        }
    }

    /// Converts the error of a failed receive.
    #[must_use]
    pub fn not_received(&self, error: io::Error) -> ConnectError {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.closed(),
            _ => self.failed("receiving from", error),
        }
    }

    fn failed(&self, tried: &str, source: io::Error) -> ConnectError {
        let address = self.address;
        let awaited = match source.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                if self.is_answered {
                    format!(
                        "verdict from the server at {address}: check that it accepts or rejects \
                         the clients that it is given. If it needs longer, raise \
                         `rendezvous_timeout`"
                    )
                } else {
                    awaited_answer(address)
                }
            }
            _ => return ConnectError::Io { tried: format!("{tried} {address}"), source },
        };
        ConnectError::Timeout { limit: self.limit, awaited }
    }

    const fn closed(&self) -> ConnectError {
        let awaited =
            if self.is_answered { "it had accepted this client" } else { "it had answered" };
        ConnectError::Closed { address: self.address, awaited }
    }

    fn wrong(&self, wrong: Wrong) -> ConnectError {
        let address = self.address;
        match wrong {
            Wrong::Foreign(received) => ConnectError::Foreign { address, received },
            Wrong::Version(found) => ConnectError::Version { address, found },
            other => ConnectError::Garbled { address, what: other.to_string() },
        }
    }
}

/// Returns the description of the server's answer for the error of a client that did not receive it.
pub(crate) fn awaited_answer(address: SocketAddr) -> String {
    format!(
        "answer from the server at {address}: check that its host is up, and that it calls `incoming` or `accept`, or \
         `next` of a `Server`. If it is busy, or other clients fill its backlog, raise `rendezvous_timeout` or try again"
    )
}
