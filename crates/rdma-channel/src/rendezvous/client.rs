//! The client's part of the rendezvous.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::error::ConnectError;
use super::message::{LONGEST, Message, Parsed, Told, Wrong, parse};
use super::until::Until;
use crate::channel::Channel;
use crate::channel::options::{Options, RendezvousOptions};
use crate::channel::prepared::PreparedChannel;
use crate::exchange::TimedStream;
use crate::ledger::watch::Watch;

/// Becomes a channel with the listener at one of the addresses, and returns what its program says.
pub(super) fn connect(
    options: &Options,
    rendezvous: &RendezvousOptions,
    addresses: &[SocketAddr],
) -> Result<(Channel, Box<[u8]>), ConnectError> {
    let RendezvousOptions { user_bytes, timeout, watch } = rendezvous;
    let until = Until::after(*timeout);
    let prepared = PreparedChannel::new(options)?;
    let (stream, address) = dial(addresses, *timeout, until)?;
    let mut server = Server { stream, address, limit: *timeout, until };
    let told = Told { user_bytes: user_bytes.clone(), watches: watch.is_some() };
    server.say(&Message::Hello(Box::new(prepared.endpoint()), told))?;
    let endpoint = match server.hear(&ANSWER)? {
        Message::Endpoint(endpoint) => *endpoint,
        other => return Err(server.wrong(Wrong::Kind(other.kind()))),
    };
    let mut channel = prepared.handshake(endpoint)?;
    server.say(&Message::Ready)?;
    match server.hear(&VERDICT)? {
        Message::Accept(told) => {
            if told.watches || watch.is_some() {
                let stream = Arc::new(server.stream.into());
                channel.ledger.watch = Some(Box::new(Watch::new(&stream, *watch)));
            }
            Ok((channel, told.user_bytes))
        }
        other => Err(server.wrong(Wrong::Kind(other.kind()))),
    }
}

/// What a client waits for: in words, and what may be wrong if it does not come.
struct Awaited {
    what: &'static str,
    why_not: &'static str,
    /// What has not happened if the stream ends.
    event: &'static str,
}

const ANSWER: Awaited = Awaited {
    what: "answer",
    why_not: "does it call `incoming` or `accept`, or `next` of a `Server`, and has it not too many clients that stall? If it is busy for \
              longer, raise `rendezvous_timeout`",
    event: "it had answered",
};
const VERDICT: Awaited = Awaited {
    what: "verdict",
    why_not: "does it accept or reject the clients that it is given? If it needs longer, raise `rendezvous_timeout`",
    event: "it had accepted this client",
};

/// A stream to the first of the addresses that takes one. Each has an equal share of the time that is left.
fn dial(
    addresses: &[SocketAddr],
    limit: Duration,
    until: Until,
) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let mut tried = Vec::new();
    let mut failure = None;
    for (&address, shares) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let left = match until.left() {
            Duration::MAX => Duration::MAX,
            left => left / u32::try_from(shares).unwrap_or(u32::MAX),
        };
        let outcome = match left {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => TcpStream::connect_timeout(&address, left),
        };
        let outcome = outcome.and_then(|stream| {
            // TCP may connect a socket to itself, where nobody listens.
            let is_itself = stream.local_addr()? == stream.peer_addr()?;
            stream.set_nodelay(true)?;
            if is_itself { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(stream) }
        });
        let source = match outcome {
            Ok(stream) => return Ok((stream, address)),
            Err(source) => source,
        };
        tried.push(address);
        let error = match source.kind() {
            ErrorKind::ConnectionRefused => continue,
            ErrorKind::TimedOut => ConnectError::Timeout {
                limit,
                awaited: format!(
                    "TCP connection to {address}: is the address right, and does a firewall drop what goes there?"
                ),
            },
            _ => ConnectError::Io { tried: format!("connecting to {address}"), source },
        };
        failure.get_or_insert(error);
    }
    Err(failure.unwrap_or(ConnectError::NobodyListens { tried }))
}

/// The server, as its client sees it.
struct Server {
    stream: TcpStream,
    address: SocketAddr,
    limit: Duration,
    until: Until,
}

impl Server {
    fn say(&mut self, message: &Message) -> Result<(), ConnectError> {
        let bytes = message.to_bytes();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match (&self.stream).write_within(rest, self.until.left()) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted if !self.until.is_over() => {}
                    ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                        return Err(self.late(&ANSWER));
                    }
                    // It may have said why before it closed the stream: that is heard next.
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Ok(()),
                    _ => return Err(self.failed("sending to", error)),
                },
            }
        }
        Ok(())
    }

    /// Takes one message and no byte more, since the next one may be behind it already.
    fn hear(&mut self, awaited: &Awaited) -> Result<Message, ConnectError> {
        let mut block = [0; LONGEST];
        let mut come = 0;
        loop {
            let lacks = match parse(block.get(..come).unwrap_or_default()) {
                Ok(Parsed::Whole(Message::Reject(why))) => return Err(ConnectError::Rejected(why)),
                Ok(Parsed::Whole(Message::Busy(why))) => return Err(ConnectError::Busy(why)),
                Ok(Parsed::Whole(message)) => return Ok(message),
                Ok(Parsed::Lacks(lacks)) => lacks,
                Err(wrong) => return Err(self.wrong(wrong)),
            };
            let room = block.get_mut(come..come + lacks).unwrap_or_default();
            match (&self.stream).read_within(room, self.until.left()) {
                Ok(0) => return Err(self.closed(awaited)),
                Ok(count) => come += count,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted if !self.until.is_over() => {}
                    ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                        return Err(self.late(awaited));
                    }
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                        return Err(self.closed(awaited));
                    }
                    _ => return Err(self.failed("receiving from", error)),
                },
            }
        }
    }

    fn late(&self, Awaited { what, why_not, .. }: &Awaited) -> ConnectError {
        let awaited = format!("{what} of the server at {}: {why_not}", self.address);
        ConnectError::Timeout { limit: self.limit, awaited }
    }

    fn closed(&self, awaited: &Awaited) -> ConnectError {
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
