//! Connections by rdma_cm.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use rdma_cm::{Connection, ConnectionId, ConnectionRequest, Event, EventChannel};
use rdma_connect::cm::{self, CmClient, CmClients, MakeCmEnds, NO_QUEUE_PAIR, reject};
use rdma_connect::{ConnectError, Until};
use rdma_mem::ProtectionDomain;
use rdma_qp::{Error, PreparedQueuePair, QueuePair};
use tracing::field::{Empty, display};

use super::address::resolve;
use super::builder::ByAddress;
use super::listener::ChannelListener;
use super::source::Source;
use crate::channel::Channel;
use crate::channel::builder::ChannelBuilder;
use crate::channel::options::{Options, RendezvousOptions};
use crate::channel::prepared::{ChannelParts, PreparedChannel};
use crate::ledger::watch::Watch;

impl Channel {
    /// Connects by rdma_cm to the [listener](ChannelBuilder::listen_cm) at this address, with the default options. Like
    /// [`connect_cm`](ChannelBuilder::connect_cm) of the builder, except that the server's user bytes are dropped.
    ///
    /// # Errors
    /// Same errors as [`ChannelBuilder::connect_cm`].
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{Channel, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut listener = pd.create_channel().listen_cm("localhost:0")?;
    /// let address = listener.local_addr();
    /// let server = std::thread::spawn(move || listener.accept());
    ///
    /// let channel = Channel::connect_cm(address, &pd)?;
    /// # assert_eq!(server.join().unwrap()?.peer().map(|peer| peer.peer_qpn), channel.qpn());
    /// # Ok::<(), rdma_channel::ConnectError>(())
    /// ```
    #[doc(alias("rdma_cm", "rdma_connect", "rdma_create_ep"))]
    pub fn connect_cm(
        addr: impl ToSocketAddrs,
        pd: &ProtectionDomain,
    ) -> Result<Self, ConnectError> {
        Ok(Self::builder().pd(pd).connect_cm(addr)?.0)
    }
}

impl<C: ByAddress> ChannelBuilder<'_, C> {
    /// Connects by rdma_cm to the listener at this address. Returns the channel, and the other end's
    /// [`user_bytes`](Self::user_bytes).
    ///
    /// The listener is [`listen_cm`](Self::listen_cm), [`bind_cm`](crate::ServerBuilder::bind_cm) of a server,
    /// [`rdma_cm::Listener`], or a C program that uses librdmacm. Which addresses are reached is described at
    /// [`rdma_cm`]. Both ends can send when this returns. The time limit is
    /// [`rendezvous_timeout`](Self::rendezvous_timeout), which does not include the name lookup,
    /// or the kernel's search for a route (at most 30 s).
    ///
    /// Every message of rdma_cm has limited room, so this end has at most 52 user bytes, and the server at most 192. C
    /// programs receive these bytes as the beginning of the private data. The private data of a C program is returned as
    /// a whole, of 196 bytes.
    ///
    /// The channel detects that the peer is gone as with [`watch`](Self::watch). The limit has no effect: if the peer is
    /// on this host, its end is detected at once. On another host, the peer's disconnect is detected, but requests only
    /// fail after their retries if its process is killed or its machine loses power. A channel on which no thread waits
    /// answers no messages. A peer that disconnects meanwhile does not wait for it.
    ///
    /// # Errors
    /// | | |
    /// |---|---|
    /// | [`NobodyListens`](ConnectError::NobodyListens) | the port has no listener |
    /// | [`Rejected`](ConnectError::Rejected) | the server rejected this client, or their queue pairs do not match; without a reason if the server is a C program |
    /// | [`Busy`](ConnectError::Busy) | the server is full, or has no queue pair for this client: try again later |
    /// | [`Timeout`](ConnectError::Timeout) | the time limit expired |
    /// | [`Closed`](ConnectError::Closed) | the server ended meanwhile |
    /// | [`Io`](ConnectError::Io) | the device does not reach the address, or too many files are open |
    /// | [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) | the name has no address |
    /// | [`UserBytesTooLong`](ConnectError::UserBytesTooLong) | there are more than 52 user bytes |
    /// | [`Verbs`](ConnectError::Verbs) | an error of [`build`](Self::build) or [`handshake`](crate::PreparedChannel::handshake) |
    #[doc(alias("rdma_cm", "rdma_connect", "rdma_create_ep"))]
    pub fn connect_cm(
        self,
        addr: impl ToSocketAddrs,
    ) -> Result<(Channel, Box<[u8]>), ConnectError> {
        connect(&self.options, &self.rendezvous, &resolve(addr)?)
    }

    /// Listens by rdma_cm at the first of these addresses that belongs to this host, and turns each client into a channel
    /// with these options. Port 0 stands for a free one. Clients call [`connect_cm`](Self::connect_cm), or are C programs
    /// that use librdmacm. Such a client's [user bytes](crate::Incoming::user_bytes) are its private data, of 56 bytes.
    ///
    /// Clients make progress only while the program calls the listener. At most 128 requests wait meanwhile.
    /// [`accept`](ChannelListener::accept) waits for no particular client. A client that does not confirm its connection
    /// is dropped after [`rendezvous_timeout`](Self::rendezvous_timeout), or earlier to make room for another one.
    /// [`Incoming::accept`](crate::Incoming::accept) waits for the client's confirmation for at most this time.
    ///
    /// # Errors
    /// - [`Io`](ConnectError::Io) if the port is in use, or no address belongs to this host;
    /// - [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress);
    /// - [`UserBytesTooLong`](ConnectError::UserBytesTooLong) for more than 192 user bytes;
    /// - [`Verbs`](ConnectError::Verbs) if no channel can be created with these options.
    #[doc(alias("rdma_cm", "rdma_listen", "rdma_create_ep"))]
    pub fn listen_cm(self, addr: impl ToSocketAddrs) -> Result<ChannelListener, ConnectError> {
        listen(self.options, self.rendezvous, &resolve(addr)?)
    }
}

impl MakeCmEnds for Options {
    type Rest = ChannelParts;

    fn split(prepared: PreparedChannel) -> (PreparedQueuePair, ChannelParts) {
        (prepared.qp, prepared.rest)
    }

    fn finish(rest: ChannelParts, qp: QueuePair) -> Result<Channel, Error> {
        rest.channel(qp)
    }
}

/// Creates a channel to the listener at the first address that the device reaches. Returns the channel and the
/// listener's user bytes.
fn connect(
    options: &Options,
    rendezvous: &RendezvousOptions,
    addresses: &[SocketAddr],
) -> Result<(Channel, Box<[u8]>), ConnectError> {
    let RendezvousOptions { user_bytes, timeout, watch } = rendezvous;
    let (until, data) = (Until::after(Instant::now(), *timeout), cm::request(user_bytes)?);
    let context = options.pd.context();
    let device = context.device().name();
    let span = tracing::debug_span!("connect", device, peer = Empty, qpn = Empty).entered();
    let events = EventChannel::shared(context).map_err(not_prepared)?;
    let first = *addresses.first().ok_or(ConnectError::NoAddress)?;
    let resolved =
        events.resolve(addresses).map_err(|error| cm::not_connected(error, first, *timeout))?;
    let address = resolved.address();
    span.record("peer", display(address));
    let failed = |error| cm::not_connected(error, address, *timeout);
    let PreparedChannel { qp, rest } = PreparedChannel::new(options)?;
    let connecting = resolved.connect(qp, &data).map_err(failed)?;
    let replied = connecting.wait(until.left(Instant::now())).map_err(failed)?;
    let user_bytes = cm::decode(replied.private_data()).0.into();
    let channel = finish(rest, replied.establish().map_err(failed)?, address, *watch)?;
    span.record("qpn", channel.qpn().map(display));
    Ok((channel, user_bytes))
}

/// Creates a listener at the first address of this host.
fn listen(
    options: Options,
    rendezvous: RendezvousOptions,
    addresses: &[SocketAddr],
) -> Result<ChannelListener, ConnectError> {
    let device = options.pd.context().device().name();
    let _span = tracing::debug_span!("listen", device, ?addresses).entered();
    // Creates a channel only to find unsupported options now, instead of when the first client connects.
    drop(PreparedChannel::new(&options)?);
    let events = EventChannel::open(options.pd.context()).map_err(not_prepared)?;
    let RendezvousOptions { user_bytes, timeout, watch } = rendezvous;
    let clients = CmClients::listen(options, events, addresses, timeout, &user_bytes)?;
    Ok(ChannelListener { clients: Source::Cm(clients), user_bytes, watch })
}

/// Returns the error of an event channel that cannot be opened.
pub(crate) fn not_prepared(error: rdma_cm::Error) -> ConnectError {
    cm::failed(error, || "preparing to connect".into())
}

/// Accepts a client with these user bytes, and waits for its confirmation within the limit.
pub(super) fn accept(
    maker: &Options,
    request: ConnectionRequest,
    user_bytes: &[u8],
    (limit, watch): (Duration, Option<Duration>),
) -> Result<Channel, ConnectError> {
    let address = request.peer_address();
    let data = match cm::reply(user_bytes) {
        Ok(data) => data,
        Err(error) => {
            reject(request, "its user bytes are too long", false);
            return Err(error);
        }
    };
    let PreparedChannel { qp, rest } = match PreparedChannel::new(maker) {
        Ok(prepared) => prepared,
        Err(error) => {
            reject(request, NO_QUEUE_PAIR, true);
            return Err(error.into());
        }
    };
    let accepted = request.prepare(qp).and_then(|accepting| accepting.accept(&data));
    let connection = accepted.and_then(|accepted| accepted.wait(limit));
    finish(
        rest,
        connection.map_err(|error| cm::not_accepted(error, address, limit))?,
        address,
        watch,
    )
}

/// Waits for the next request, for the program to decide. Returns `None` if there is none before the deadline.
pub(super) fn next_request(
    clients: &mut CmClients<Options>,
    until: Until,
) -> Result<Option<ConnectionRequest>, ConnectError> {
    while let Some(event) = next_event(clients, until)? {
        match clients.request(event) {
            Ok(request) => return Ok(Some(request)),
            Err(event) => _ = clients.handle(event, Instant::now()),
        }
    }
    Ok(None)
}

/// Waits for the next event of a listener and of its clients that are not connected yet.
fn next_event(
    clients: &mut CmClients<Options>,
    until: Until,
) -> Result<Option<Event>, ConnectError> {
    loop {
        let now = Instant::now();
        clients.expire(now);
        let limit = until.left(now).min(clients.next_end(now));
        let event = clients.events().next_of(|id| clients.wants(id), Some(limit));
        let event = event.map_err(|error| clients.failed(error))?;
        if event.is_some() || until.is_over(Instant::now()) {
            return Ok(event);
        }
    }
}

/// Creates a channel with an established connection.
fn finish(
    rest: ChannelParts,
    connection: Connection,
    address: SocketAddr,
    watch: Option<Duration>,
) -> Result<Channel, ConnectError> {
    let (qp, id) = connection.into_parts();
    let mut channel = rest.channel(qp)?;
    keep(&mut channel, id, address, watch)?;
    Ok(channel)
}

/// Stores the ID of a channel's connection, and the address of its peer.
fn keep(
    channel: &mut Channel,
    id: ConnectionId,
    address: SocketAddr,
    watch: Option<Duration>,
) -> Result<(), ConnectError> {
    channel.ledger.watch = Some(Box::new(Watch::of_cm(id, address, watch)?));
    channel.ledger.peer_addr = Some(address);
    Ok(())
}

/// Waits until a client is connected.
pub(super) fn accept_next(
    clients: &mut CmClients<Options>,
    watch: Option<Duration>,
) -> Result<Channel, ConnectError> {
    loop {
        let Some(client) = clients.take() else {
            if let Some(failure) = clients.take_failure() {
                return Err(failure);
            }
            if let Some(event) = next_event(clients, Until::after(Instant::now(), Duration::MAX))? {
                clients.handle(event, Instant::now());
            }
            continue;
        };
        let ended = client.look_for_end();
        let CmClient { end: mut channel, id, address, .. } = client;
        let qpn = channel.qpn().map(display);
        let _span = tracing::debug_span!("accept", client = %address, qpn).entered();
        match ended {
            Some(end) => clients.refuse(format!("{address}: {end}")),
            None => {
                keep(&mut channel, id, address, watch)?;
                return Ok(channel);
            }
        }
    }
}
