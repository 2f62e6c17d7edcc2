//! What a client says and hears, whatever moves the bytes.

use rdma_connect::{ConnectError, Message, Parsed, Wrong, parse};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

/// What a client waits for: in words, and what may be wrong if it does not come.
#[derive(Debug)]
pub struct Awaited {
    what: &'static str,
    why_not: &'static str,
    /// What has not happened if the stream ends.
    event: &'static str,
}

/// The server's endpoint.
pub const ANSWER: Awaited = Awaited {
    what: "answer",
    why_not: "does it call `incoming` or `accept`, or `next` of a `Server`? If it is busy, or other clients fill its backlog, \
              raise `rendezvous_timeout` or try again",
    event: "it had answered",
};
/// What its program decides.
pub const VERDICT: Awaited = Awaited {
    what: "verdict",
    why_not: "does it accept or reject the clients that it is given? If it needs longer, raise `rendezvous_timeout`",
    event: "it had accepted this client",
};

/// What a client has heard of its server.
#[derive(Debug)]
pub struct Talk {
    address: SocketAddr,
    limit: Duration,
    heard: Vec<u8>,
}

/// What has come.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // not for programs
pub enum Heard {
    /// A message, which is none of refusal.
    Message(Message),
    /// So many bytes are still to come at least, and none behind them is of this message.
    Lacks(usize),
}

impl Talk {
    /// With the server at this address, for at most so long.
    pub const fn new(address: SocketAddr, limit: Duration) -> Self {
        Self { address, limit, heard: Vec::new() }
    }

    /// Takes bytes that have come; none if the stream has ended.
    ///
    /// # Errors
    /// [`ConnectError::Closed`] if it has ended.
    pub fn hear(&mut self, bytes: &[u8], awaited: &Awaited) -> Result<(), ConnectError> {
        if bytes.is_empty() {
            return Err(self.closed(awaited));
        }
        self.heard.extend(bytes);
        Ok(())
    }

    /// The message that has come, or what it lacks.
    ///
    /// # Errors
    /// If the server has refused this client, or says what it cannot say.
    pub fn heard(&mut self) -> Result<Heard, ConnectError> {
        match parse(&self.heard) {
            Ok(Parsed::Lacks(lacks)) => Ok(Heard::Lacks(lacks)),
            Ok(Parsed::Whole(message)) => {
                self.heard.clear();
                match message {
                    Message::Reject(why) => Err(ConnectError::Rejected(why)),
                    Message::Busy(why) => Err(ConnectError::Busy(why)),
                    message => Ok(Heard::Message(message)),
                }
            }
            Err(wrong) => Err(self.wrong(wrong)),
        }
    }

    /// A message came that does not belong here.
    pub fn misplaced(&self, message: &Message) -> ConnectError {
        self.wrong(Wrong::Kind(message.kind()))
    }

    /// Something could not be said.
    ///
    /// # Errors
    /// None if the server has closed the stream: it may have said why before, and that is heard next.
    pub fn not_said(&self, error: std::io::Error) -> Result<(), ConnectError> {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                Err(self.late(&ANSWER))
            }
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(()),
            _ => Err(self.failed("sending to", error)),
        }
    }

    /// Nothing could be heard.
    pub fn not_heard(&self, error: std::io::Error, awaited: &Awaited) -> ConnectError {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                self.late(awaited)
            }
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.closed(awaited),
            _ => self.failed("receiving from", error),
        }
    }

    fn late(&self, Awaited { what, why_not, .. }: &Awaited) -> ConnectError {
        let awaited = format!("{what} of the server at {}: {why_not}", self.address);
        ConnectError::Timeout { limit: self.limit, awaited }
    }

    const fn closed(&self, awaited: &Awaited) -> ConnectError {
        ConnectError::Closed { address: self.address, awaited: awaited.event }
    }

    fn failed(&self, tried: &str, source: std::io::Error) -> ConnectError {
        ConnectError::Io { tried: format!("{tried} {}", self.address), source }
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

/// Why there is no stream to an address at which somebody may listen.
pub fn not_connected(address: SocketAddr, limit: Duration, source: std::io::Error) -> ConnectError {
    if source.kind() == ErrorKind::TimedOut {
        let awaited = format!(
            "TCP connection to {address}: is the address right? If it is, a firewall drops what goes there, or the \
             server is too busy to take clients and its backlog is full: then try again, or raise `rendezvous_timeout`"
        );
        return ConnectError::Timeout { limit, awaited };
    }
    ConnectError::Io { tried: format!("connecting to {address}"), source }
}
