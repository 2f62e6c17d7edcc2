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

/// Makes a [`Server`]. The options of the connections are those of a channel; the receives are for all clients.
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

/// What a server keeps of its options.
#[derive(Debug)]
pub(super) struct ServerOptions {
    pub(super) pd: ProtectionDomain,
    pub(super) max_peers: u32,
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) message_size: usize,
    /// How many bytes the program may want to send inline.
    pub(super) inline: u32,
    pub(super) limits: Limits,
    /// What clients are told when they are accepted.
    pub(super) user_bytes: Box<[u8]>,
    pub(super) rendezvous_timeout: Duration,
    /// After so long a silent client is gone.
    pub(super) watch: Duration,
}

impl ServerOptions {
    /// How many bytes all receives have.
    pub(super) const fn receive_bytes(&self) -> usize {
        (self.max_recv_wr as usize).saturating_mul(self.message_size)
    }
}

/// How many receives there are for all.
const RECEIVES: u32 = 256;
/// How long a machine may be silent.
const SILENCE: Duration = Duration::from_secs(10);

impl<'a> ServerBuilder<'a> {
    pub(super) fn of_server(pd: &'a ProtectionDomain) -> Self {
        Self::new(pd).max_recv_wr(RECEIVES)
    }

    /// How many clients there can be at a time; others are told to come again. Default: 64.
    ///
    /// The completion queue has the capacity for all that they can have outstanding from the beginning.
    pub fn max_peers(mut self, max_peers: u32) -> Self {
        self.server.max_peers = max_peers;
        self
    }

    /// Whether the clients share one receive queue, so that each can use all receives. Default: true if the device has
    /// shared receive queues. Some have none, such as Intel E810 and Alibaba erdma.
    ///
    /// Otherwise each client has [`max_recv_wr_per_peer`](Self::max_recv_wr_per_peer) receives of its own.
    /// [`max_recv_wr`](Self::max_recv_wr) is the number of all receives on both kinds of device, and with
    /// [`message_size`](Self::message_size) the memory for them.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(mut self, shares: bool) -> Self {
        self.server.shares = Some(shares);
        self
    }

    /// The number of receives of each client where clients share no receive queue. Default:
    /// [`max_recv_wr`](Self::max_recv_wr) divided by [`max_peers`](Self::max_peers), at least 1.
    ///
    /// There are at most [`max_recv_wr`](Self::max_recv_wr) receives for all: a client that comes when all are given
    /// out is told [`Busy`](ConnectError::Busy), with both numbers. Without effect where clients share a receive queue.
    pub fn max_recv_wr_per_peer(mut self, max_recv_wr: u32) -> Self {
        self.server.per_peer = Some(max_recv_wr);
        self
    }

    /// How many bytes a message of a client can have. A longer one fails the connection. Default: 4,096.
    pub fn message_size(mut self, message_size: usize) -> Self {
        self.server.message_size = message_size;
        self
    }

    /// Bytes for each client, at most 1,024, which its [`connect`](ChannelBuilder::connect) returns. Default: none.
    pub fn user_bytes(mut self, user_bytes: &[u8]) -> Self {
        self.rendezvous.user_bytes = user_bytes.into();
        self
    }

    /// How long a client may take for its part of the rendezvous. Default: 10 seconds.
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.rendezvous.timeout = timeout;
        self
    }

    /// After how long a client leaves whose machine is silent; as [`watch`](ChannelBuilder::watch) of a channel. One whose
    /// process ends leaves at once, whatever the limit. Default: 10 seconds.
    pub fn watch(mut self, limit: Duration) -> Self {
        self.rendezvous.watch = Some(limit);
        self
    }

    /// Listens at the first of these addresses that can be listened at. Port 0 has the kernel choose one.
    ///
    /// # Errors
    /// [`Io`](ConnectError::Io), of the first address; [`Resolve`](ConnectError::Resolve),
    /// [`NoAddress`](ConnectError::NoAddress) and [`UserBytesTooLong`](ConnectError::UserBytesTooLong) as for
    /// [`connect`](ChannelBuilder::connect); [`Verbs`](ConnectError::Verbs) if the queues cannot be made, if an option
    /// is 0 so that no message could be received, if one client would have more receives than all together, or if there
    /// is no memory for the receives.
    #[doc(alias("ibv_create_srq", "ibv_create_cq"))]
    pub fn bind(self, addr: impl ToSocketAddrs) -> Result<Server, ConnectError> {
        ConnectError::check_user_bytes(&self.rendezvous.user_bytes)?;
        let addresses = resolve(addr)?;
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
            watch: rendezvous.watch.unwrap_or(SILENCE),
        };
        Server::of(ServerQueues::new(options, server)?, kept, &addresses)
    }
}
