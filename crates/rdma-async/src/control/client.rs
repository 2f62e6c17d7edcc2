//! The client's part.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rdma_channel::ConnectError;
use rdma_channel::parts::{
    ANSWER, Awaited, Heard, Message, Talk, Told, Until, VERDICT, addresses_of, not_connected,
};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::time::timeout;

use super::meet::blocking;
use super::options::ConnectionOptions;
use super::shared::Shared;
use super::stream::keep;
use crate::connection::Connection;
use crate::driver::Driver;

impl Driver {
    /// Connects to the [listener](crate::Listener) at this address, and returns what its program says, the
    /// [`user_bytes`](ConnectionOptions::user_bytes) of the other end. A
    /// [`ChannelListener`](rdma_channel::ChannelListener) takes such a client, too.
    ///
    /// Both ends can send when it has returned. If there are several addresses, each is tried in order, with its share of
    /// the time. Dropped before it is ready, nothing remains of it, but the server may have accepted it.
    ///
    /// # Errors
    /// Those of [`ChannelBuilder::connect`](rdma_channel::ChannelBuilder::connect).
    ///
    /// # Panics
    /// If this is not called within a runtime of tokio with I/O and time.
    ///
    /// # Examples
    /// See [`Listener`](crate::Listener).
    pub async fn connect(
        &self,
        addr: impl ToSocketAddrs,
        options: impl Into<ConnectionOptions>,
    ) -> Result<(Connection, Box<[u8]>), ConnectError> {
        let options = options.into();
        options.check()?;
        self.check()?;
        let addresses = lookup_host(addr).await;
        let addresses: Vec<_> =
            addresses.map_err(|source| ConnectError::Resolve { source })?.collect();
        if addresses.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let leases = (options.lease_limits, options.lease_margin);
        let ConnectionOptions { qp, user_bytes, rendezvous_timeout: timeout, .. } = options;
        let beats = (options.silence, options.heartbeat);
        let until = Until::after(timeout);
        let (driver, options) = (self.clone(), qp.clone());
        let mut prepared = blocking(move || Ok(driver.prepare(options)?)).await?;
        let (stream, address) = dial(&addresses, timeout, until).await?;
        let stream_addresses = addresses_of(&stream);
        if let Some((own, peer)) = stream_addresses {
            prepared.set_stream_addresses(own, peer);
        }
        let mut server = Server { stream, talk: Talk::new(address, timeout), until };
        let told = Told { user_bytes, watches: true, talks: true };
        server.say(&Message::Hello(Box::new(prepared.endpoint()), told)).await?;
        let endpoint = match server.hear(&ANSWER).await? {
            Message::Endpoint(endpoint) => *endpoint,
            other => return Err(server.talk.misplaced(&other)),
        };
        let connection = blocking(move || Ok(prepared.handshake(endpoint)?)).await?;
        server.say(&Message::Ready).await?;
        let told = match server.hear(&VERDICT).await? {
            Message::Accept(told) => told,
            other => return Err(server.talk.misplaced(&other)),
        };
        let kept = server.stream.into_std().map(OwnedFd::from);
        let shared = Shared::new((address, stream_addresses), true, told.talks, timeout, leases);
        let kept = kept.and_then(|stream| keep(connection.inner(), stream, shared, qp, beats));
        kept.map_err(|source| {
            let tried = format!("keeping the control connection to {address}");
            ConnectError::Io { tried, source }
        })?;
        Ok((connection, told.user_bytes))
    }
}

/// A stream to the first of the addresses that takes one. Each has an equal share of the time that is left.
async fn dial(
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
        let outcome = timeout(left, TcpStream::connect(address)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let outcome = outcome.and_then(|stream| {
            // TCP may connect a socket to itself, where nobody listens.
            let is_itself = stream.local_addr()? == stream.peer_addr()?;
            stream.set_nodelay(true)?;
            if is_itself { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(stream) }
        });
        let source = match outcome {
            Ok(stream) => return Ok((stream, address)),
            Err(source) => source,
        };
        tried.push(address);
        if source.kind() != io::ErrorKind::ConnectionRefused {
            failure.get_or_insert_with(|| not_connected(address, limit, source));
        }
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
    async fn say(&mut self, message: &Message) -> Result<(), ConnectError> {
        let bytes = message.to_bytes();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let writable = within(self.until, self.stream.writable()).await;
            match writable.and_then(|()| self.stream.try_write(rest)) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if is_spurious(&error) => {}
                Err(error) => return self.talk.not_said(error),
            }
        }
        Ok(())
    }

    async fn hear(&mut self, awaited: &Awaited) -> Result<Message, ConnectError> {
        let mut block = [0; 512];
        loop {
            let lacks = match self.talk.heard()? {
                Heard::Message(message) => return Ok(message),
                Heard::Lacks(lacks) => lacks.min(block.len()),
            };
            let room = block.get_mut(..lacks).unwrap_or_default();
            let readable = within(self.until, self.stream.readable()).await;
            match readable.and_then(|()| self.stream.try_read(room)) {
                Ok(count) => self.talk.hear(room.get(..count).unwrap_or_default(), awaited)?,
                Err(error) if is_spurious(&error) => {}
                Err(error) => return Err(self.talk.not_heard(error, awaited)),
            }
        }
    }
}

async fn within(until: Until, ready: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let ready = timeout(until.left(), ready).await;
    ready.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The stream was not ready after all.
fn is_spurious(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
