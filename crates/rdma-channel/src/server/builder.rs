//! The options of a server.

use std::net::ToSocketAddrs;
use std::time::Duration;

use rdma_connect::ConnectError;
use rdma_mem::ProtectionDomain;
use rdma_qp::Error;

use super::Server;
use super::queues::ServerQueues;
use crate::channel::builder::ChannelBuilder;
use crate::limits::Limits;
use crate::rendezvous::address::resolve;
use crate::rendezvous::clients::Listening;
use crate::rendezvous::source::Source;

/// Creates a [`Server`]. The options of its connections are the same as those of a channel. By default, all clients
/// share the receives if the device supports that.
///
/// # Examples
/// ```
/// use rdma_channel::prelude::*;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let server = pd
///     .create_server()
///     .max_peers(1000)
///     .max_recv_wr(4096) // for all clients together
///     .max_recv_wr_per_peer(4) // on a device without shared receive queues
///     .max_send_wr(4) // to each client
///     .message_size(64 * 1024)
///     .bind("127.0.0.1:0")?;
/// println!("connect to {}", server.local_addr());
/// # Ok::<(), rdma_channel::ConnectError>(())
/// ```
pub type ServerBuilder<'a> = ChannelBuilder<'a, Server>;

/// The options that a server keeps after it is created.
#[derive(Debug)]
pub(super) struct ServerOptions {
    pub(super) pd: ProtectionDomain,
    pub(super) max_peers: u32,
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) message_size: usize,
    /// The maximum size of inline data that the program requested, in bytes.
    pub(super) inline: u32,
    pub(super) limits: Limits,
    /// The bytes that the server sends to each accepted client.
    pub(super) user_bytes: Box<[u8]>,
    pub(super) rendezvous_timeout: Duration,
    /// The time that a client can be silent before it counts as gone.
    pub(super) watch: Duration,
}

impl ServerOptions {
    /// Returns the size of all receives together, in bytes.
    pub(super) const fn receive_bytes(&self) -> usize {
        (self.max_recv_wr as usize).saturating_mul(self.message_size)
    }
}

/// The default number of receives, shared by all clients.
const RECEIVES: u32 = 256;

impl<'a> ServerBuilder<'a> {
    pub(super) fn of_server(pd: &'a ProtectionDomain) -> Self {
        Self::new(pd).max_recv_wr(RECEIVES)
    }

    /// The maximum number of clients at a time. Further clients are asked to connect again later. Default: 64.
    ///
    /// The completion queue has room for all of their requests.
    pub fn max_peers(mut self, max_peers: u32) -> Self {
        self.server.max_peers = max_peers;
        self
    }

    /// Whether the clients share one receive queue, so that any client can use any receive. Default: true if the device
    /// has shared receive queues. Intel E810 and Alibaba erdma, for example, have none.
    ///
    /// If this is false, each client has [`max_recv_wr_per_peer`](Self::max_recv_wr_per_peer) receives of its own. In
    /// both cases, [`max_recv_wr`](Self::max_recv_wr) is the number of all receives together. Multiplied by
    /// [`message_size`](Self::message_size), it gives the memory that they need.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(mut self, shares: bool) -> Self {
        self.server.shares = Some(shares);
        self
    }

    /// The number of receives that each client has if clients do not share a receive queue. Default:
    /// [`max_recv_wr`](Self::max_recv_wr) divided by [`max_peers`](Self::max_peers), but at least 1.
    ///
    /// All clients together have at most [`max_recv_wr`](Self::max_recv_wr) receives. A client that connects when none
    /// are left gets [`Busy`](ConnectError::Busy), with both numbers. This option has no effect if clients share a
    /// receive queue.
    pub fn max_recv_wr_per_peer(mut self, max_recv_wr: u32) -> Self {
        self.server.per_peer = Some(max_recv_wr);
        self
    }

    /// The maximum size of a client's message in bytes. A longer message fails the connection. Default: 4,096.
    pub fn message_size(mut self, message_size: usize) -> Self {
        self.server.message_size = message_size;
        self
    }

    /// The bytes that each client gets from [`connect`](ChannelBuilder::connect), at most 1,024. Default: none.
    pub fn user_bytes(mut self, user_bytes: &[u8]) -> Self {
        self.rendezvous.user_bytes = user_bytes.into();
        self
    }

    /// The time limit for each message of a client in the rendezvous. Default: 10 seconds.
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.rendezvous.timeout = timeout;
        self
    }

    /// The time that a client's machine can be silent before the client leaves, like [`watch`](ChannelBuilder::watch)
    /// of a channel. If the client's process ends, the client leaves at once, whatever this limit is. Default: 10
    /// seconds.
    pub fn watch(mut self, limit: Duration) -> Self {
        self.server.watch = limit;
        self
    }

    /// Listens at the first usable address. For port 0, the kernel chooses a port.
    ///
    /// # Errors
    /// - [`Io`](ConnectError::Io) for the first address, if none is usable;
    /// - [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) and
    ///   [`UserBytesTooLong`](ConnectError::UserBytesTooLong), like [`connect`](ChannelBuilder::connect);
    /// - [`Verbs`](ConnectError::Verbs) if the queues cannot be created, or if there is no memory for the receives. It
    ///   is also returned if a number or size is 0, or if one client would have more receives than all clients
    ///   together.
    #[doc(alias("ibv_create_srq", "ibv_create_cq"))]
    pub fn bind(self, addr: impl ToSocketAddrs) -> Result<Server, ConnectError> {
        ConnectError::check_user_bytes(&self.rendezvous.user_bytes)?;
        let addresses = resolve(addr)?;
        let (queues, options) = self.parts()?;
        let timeout = options.rendezvous_timeout;
        Server::of(queues, options, |queues, files| {
            Listening::new(queues, timeout, &addresses, files.clone()).map(Source::Tcp)
        })
    }

    /// Creates the server's queues. Also returns the options that the server keeps.
    pub(super) fn parts(self) -> Result<(ServerQueues, ServerOptions), ConnectError> {
        let Self { options, rendezvous, server, .. } = self;
        let knobs = [
            ("max_peers", u64::from(server.max_peers)),
            ("message_size", server.message_size as u64),
            ("max_recv_wr", u64::from(options.max_recv_wr)),
            ("max_send_wr", u64::from(options.max_send_wr)),
            ("max_recv_wr_per_peer", u64::from(server.per_peer.unwrap_or(1))),
        ];
        if let Some(&(knob, _)) = knobs.iter().find(|(_, value)| *value == 0) {
            return Err(Error::TooSmall { knob, least: 1 }.into());
        }
        let kept = ServerOptions {
            pd: options.pd.clone(),
            max_peers: server.max_peers,
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            message_size: server.message_size,
            inline: options.inline(),
            limits: options.limits,
            user_bytes: rendezvous.user_bytes,
            rendezvous_timeout: rendezvous.timeout,
            watch: server.watch,
        };
        Ok((ServerQueues::new(options, server)?, kept))
    }
}
