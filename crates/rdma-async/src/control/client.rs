//! The client of a control connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use rdma_connect::{Client, ConnectError, Dial, Greeting, Until, stream_addresses};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::time::timeout;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

use super::negotiate::blocking;
use super::options::ConnectionOptions;
use super::shared::Shared;
use super::stream::keep;
use crate::connection::Connection;
use crate::driver::Driver;
use crate::sync::now;

impl Driver {
    /// Connects to the [listener](crate::Listener) at this address. Returns the connection and the other end's
    /// [`user_bytes`](ConnectionOptions::user_bytes). A `ChannelListener` of `rdma-channel` also accepts such a client.
    ///
    /// Both ends can send once this returns. If there are several addresses, each is tried in order and gets its share
    /// of the time. If the future is dropped early, nothing remains at this end, but the server may have accepted the
    /// connection.
    ///
    /// # Errors
    /// | | |
    /// |---|---|
    /// | [`NobodyListens`](ConnectError::NobodyListens) | every address refused the connection |
    /// | [`Io`](ConnectError::Io) | connecting failed for every address, or the driver has ended |
    /// | [`Rejected`](ConnectError::Rejected) | the server rejects this client, or the two queue pairs do not fit; the error gives the reason |
    /// | [`Busy`](ConnectError::Busy) | the server is at its limit of clients, or has no queue pair for this one: try again later |
    /// | [`Timeout`](ConnectError::Timeout) | connecting took longer than the [`rendezvous_timeout`](ConnectionOptions::rendezvous_timeout) |
    /// | [`Closed`](ConnectError::Closed) | the server closed the stream during the handshake |
    /// | [`Foreign`](ConnectError::Foreign), [`Version`](ConnectError::Version), [`Garbled`](ConnectError::Garbled) | another program or version listens there |
    /// | [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) | the name has no address |
    /// | [`UserBytesTooLong`](ConnectError::UserBytesTooLong) | there are more than 1,024 user bytes |
    /// | [`Verbs`](ConnectError::Verbs) | a queue pair cannot be created with these options, or cannot be connected |
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    ///
    /// # Examples
    /// See [`Listener`](crate::Listener).
    #[doc(alias("rdma_cm", "rdma_connect"))]
    pub async fn connect(
        &self,
        addr: impl ToSocketAddrs,
        options: impl Into<ConnectionOptions>,
    ) -> Result<(Connection, Box<[u8]>), ConnectError> {
        let (connection, user_bytes, ()) =
            self.connect_ready(addr, options.into(), |_| Ok(())).await?;
        Ok((connection, user_bytes))
    }

    /// Like [`connect`](Self::connect). Calls `ready` before the server is notified that this end is connected, so
    /// before the server's program can send. Also returns the result of that call.
    ///
    /// # Errors
    /// Same errors as [`connect`](Self::connect), and those of `ready`.
    pub(crate) async fn connect_ready<T>(
        &self,
        addr: impl ToSocketAddrs,
        options: ConnectionOptions,
        ready: impl FnOnce(&Connection) -> Result<T, ConnectError>,
    ) -> Result<(Connection, Box<[u8]>, T), ConnectError> {
        let device = self.context().device().name();
        let span = tracing::debug_span!("connect", device, peer = Empty, qpn = Empty);
        self.connect_in_span(addr, options, ready).instrument(span).await
    }

    async fn connect_in_span<T>(
        &self,
        addr: impl ToSocketAddrs,
        options: ConnectionOptions,
        ready: impl FnOnce(&Connection) -> Result<T, ConnectError>,
    ) -> Result<(Connection, Box<[u8]>, T), ConnectError> {
        options.check()?;
        self.check()?;
        let addresses = lookup_host(addr).await;
        let addresses = addresses.map_err(|source| ConnectError::Resolve { source })?.collect();
        let leases = (options.lease_limits, options.lease_margin);
        let ConnectionOptions { qp, user_bytes, rendezvous_timeout: limit, .. } = options;
        let beats = (options.peer_timeout, options.heartbeat);
        let limits = (limit, options.operation_timeout);
        let mut dial = Dial::new(addresses, limit, now())?;
        let (driver, options) = (self.clone(), qp.clone());
        let mut prepared = blocking(move || Ok(driver.prepare(options)?)).await?;
        let (stream, address) = reach(&mut dial).await?;
        Span::current().record("peer", display(address));
        let addresses = stream_addresses(stream.local_addr(), address);
        if let Some((own, peer)) = addresses {
            prepared.set_stream_addresses(own, peer);
        }
        let client = Client::new(address, limit, self.context().device().name());
        let greeting = Greeting { user_bytes, watches: true, talks: true };
        let hello = client.hello(prepared.endpoint(), greeting);
        let mut server = Server { stream, client, until: dial.until() };
        server.send(&hello).await?;
        let endpoint = match server.receive(Client::answer).await {
            Ok(endpoint) => endpoint,
            Err(error) => {
                if let Some(last) = server.client.last_message() {
                    // If the server is gone, it does not need this message.
                    let _ = server.send(&last).await;
                }
                return Err(error);
            }
        };
        let connection = blocking(move || Ok(prepared.handshake(endpoint)?)).await?;
        Span::current().record("qpn", display(connection.qpn()));
        let made = ready(&connection)?;
        server.send(&server.client.ready()).await?;
        let Greeting { user_bytes, talks, .. } = server.receive(Client::verdict).await?;
        let shared = Shared::new((address, addresses), true, talks, limits, leases);
        keep(connection.inner(), server.stream, shared, qp, beats)?;
        Ok((connection, user_bytes, made))
    }
}

/// Connects a stream to the first address that accepts the connection.
async fn reach(dial: &mut Dial) -> Result<(TcpStream, SocketAddr), ConnectError> {
    loop {
        let (address, share) = dial.next(now())?;
        let stream = timeout(share, TcpStream::connect(address)).await;
        let stream = stream.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        let stream = stream.and_then(|stream| {
            Dial::check(&stream)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        match stream {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => dial.failed(error),
        }
    }
}

/// The client's view of the server.
struct Server {
    stream: TcpStream,
    client: Client,
    until: Until,
}

impl Server {
    async fn send(&mut self, mut bytes: &[u8]) -> Result<(), ConnectError> {
        while !bytes.is_empty() {
            let writable = within(self.until, self.stream.writable()).await;
            match writable.and_then(|()| self.stream.try_write(bytes)) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if is_spurious(&error) => {}
                Err(error) => return self.client.not_sent(error),
            }
        }
        Ok(())
    }

    /// Receives bytes until `take` returns the value that the client waits for.
    async fn receive<T>(
        &mut self,
        take: impl Fn(&mut Client, &[u8]) -> Result<Option<T>, ConnectError>,
    ) -> Result<T, ConnectError> {
        let mut block = [0; 512];
        loop {
            let lacks = self.client.lacks().min(block.len());
            let room = block.get_mut(..lacks).unwrap_or_default();
            let readable = within(self.until, self.stream.readable()).await;
            match readable.and_then(|()| self.stream.try_read(room)) {
                Ok(count) => {
                    let bytes = room.get(..count).unwrap_or_default();
                    if let Some(awaited) = take(&mut self.client, bytes)? {
                        return Ok(awaited);
                    }
                }
                Err(error) if is_spurious(&error) => {}
                Err(error) => return Err(self.client.not_received(error)),
            }
        }
    }
}

async fn within(until: Until, ready: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let ready = timeout(until.left(now()), ready).await;
    ready.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Returns true if the stream was not ready after all.
fn is_spurious(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
