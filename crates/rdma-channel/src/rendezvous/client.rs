//! The client's part of the rendezvous.

use rdma_connect::{ConnectError, LONGEST, Message, Told};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::address::addresses_of;
use super::talk::{ANSWER, Awaited, Heard, Talk, VERDICT, not_connected};
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
    let mut prepared = PreparedChannel::new(options)?;
    let (stream, address) = dial(addresses, *timeout, until)?;
    if let Some((own, peer)) = addresses_of(&stream) {
        prepared.set_stream_addresses(own, peer);
    }
    let mut server = Server { stream, talk: Talk::new(address, *timeout), until };
    let told = Told { user_bytes: user_bytes.clone(), watches: watch.is_some(), talks: false };
    server.say(&Message::Hello(Box::new(prepared.endpoint()), told))?;
    let endpoint = match server.hear(&ANSWER)? {
        Message::Endpoint(endpoint) => *endpoint,
        other => return Err(server.talk.misplaced(&other)),
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
        other => Err(server.talk.misplaced(&other)),
    }
}

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
            _ => not_connected(address, limit, source),
        };
        failure.get_or_insert(error);
    }
    Err(failure.unwrap_or(ConnectError::NobodyListens { tried }))
}

/// The server, as its client sees it.
struct Server {
    stream: TcpStream,
    talk: Talk,
    until: Until,
}

impl Server {
    fn say(&mut self, message: &Message) -> Result<(), ConnectError> {
        let bytes = message.to_bytes();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match (&self.stream).write_within(rest, self.until.left()) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if is_interrupted(&error) && !self.until.is_over() => {}
                Err(error) => return self.talk.not_said(error),
            }
        }
        Ok(())
    }

    fn hear(&mut self, awaited: &Awaited) -> Result<Message, ConnectError> {
        let mut block = [0; LONGEST];
        loop {
            let lacks = match self.talk.heard()? {
                Heard::Message(message) => return Ok(message),
                Heard::Lacks(lacks) => lacks,
            };
            let room = block.get_mut(..lacks).unwrap_or_default();
            match (&self.stream).read_within(room, self.until.left()) {
                Ok(count) => {
                    self.talk.hear(room.get(..count).unwrap_or_default(), awaited)?;
                }
                Err(error) if is_interrupted(&error) && !self.until.is_over() => {}
                Err(error) => return Err(self.talk.not_heard(error, awaited)),
            }
        }
    }
}

fn is_interrupted(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::Interrupted
}
