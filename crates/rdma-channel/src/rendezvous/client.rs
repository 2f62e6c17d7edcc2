//! The client's part of the rendezvous.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rdma_connect::{Client, ConnectError, Dial, Greeting, Until, stream_addresses};
use tracing::field::{Empty, display};

use crate::channel::Channel;
use crate::channel::options::{Options, RendezvousOptions};
use crate::channel::prepared::PreparedChannel;
use crate::exchange::TimedStream;
use crate::ledger::watch::Watch;

/// Creates a channel to the listener at one of the addresses. Returns the channel and the listener's user bytes.
pub(super) fn connect(
    options: &Options,
    rendezvous: &RendezvousOptions,
    addresses: Vec<SocketAddr>,
) -> Result<(Channel, Box<[u8]>), ConnectError> {
    let device = options.pd.context().device().name();
    let span = tracing::debug_span!("connect", device, peer = Empty, qpn = Empty).entered();
    let RendezvousOptions { user_bytes, timeout, watch } = rendezvous;
    let mut dial = Dial::new(addresses, *timeout, Instant::now())?;
    let mut prepared = PreparedChannel::new(options)?;
    let (stream, address) = reach(&mut dial)?;
    span.record("peer", display(address));
    if let Some((own, peer)) = stream_addresses(stream.local_addr(), address) {
        prepared.set_stream_addresses(own, peer);
    }
    let client = Client::new(address, *timeout, device);
    let greeting =
        Greeting { user_bytes: user_bytes.clone(), watches: watch.is_some(), talks: false };
    let hello = client.hello(prepared.endpoint(), greeting);
    let mut server = ServerStream { stream, client, until: dial.until() };
    server.send(&hello)?;
    let endpoint = match server.receive(Client::answer) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            if let Some(last) = server.client.last_message() {
                // If this fails, the server is gone and does not need the message.
                let _ = server.send(&last);
            }
            return Err(error);
        }
    };
    let mut channel = prepared.handshake(endpoint)?;
    span.record("qpn", channel.qpn().map(display));
    server.send(&server.client.ready())?;
    let Greeting { user_bytes, watches, .. } = server.receive(Client::verdict)?;
    channel.ledger.peer_addr = Some(address);
    if watches || watch.is_some() {
        let stream = Arc::new(server.stream.into());
        channel.ledger.watch = Some(Box::new(Watch::of_rendezvous(&stream, *watch)));
    }
    Ok((channel, user_bytes))
}

/// Opens a stream to the first address that accepts it.
fn reach(dial: &mut Dial) -> Result<(TcpStream, SocketAddr), ConnectError> {
    loop {
        let (address, share) = dial.next(Instant::now())?;
        let stream = TcpStream::connect_timeout(&address, share).and_then(|stream| {
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

/// The stream to the server, with the state of the client.
struct ServerStream {
    stream: TcpStream,
    client: Client,
    until: Until,
}

impl ServerStream {
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ConnectError> {
        while !bytes.is_empty() {
            let now = Instant::now();
            match (&self.stream).write_within(bytes, self.until.left(now)) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if self.is_retried(&error) => {}
                Err(error) => return self.client.not_sent(error),
            }
        }
        Ok(())
    }

    /// Receives bytes until `take` returns a value.
    fn receive<T>(
        &mut self,
        take: impl Fn(&mut Client, &[u8]) -> Result<Option<T>, ConnectError>,
    ) -> Result<T, ConnectError> {
        let mut block = [0; 512];
        loop {
            let lacks = self.client.lacks().min(block.len());
            let room = block.get_mut(..lacks).unwrap_or_default();
            let received = (&self.stream).read_within(room, self.until.left(Instant::now()));
            match received {
                Ok(count) => {
                    let bytes = room.get(..count).unwrap_or_default();
                    if let Some(awaited) = take(&mut self.client, bytes)? {
                        return Ok(awaited);
                    }
                }
                Err(error) if self.is_retried(&error) => {}
                Err(error) => return Err(self.client.not_received(error)),
            }
        }
    }

    fn is_retried(&self, error: &std::io::Error) -> bool {
        error.kind() == ErrorKind::Interrupted && !self.until.is_over(Instant::now())
    }
}
