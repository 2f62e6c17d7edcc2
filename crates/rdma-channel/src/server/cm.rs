//! Servers whose clients connect by rdma_cm.

use std::collections::BTreeSet;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_cm::EventChannel;
use rdma_connect::ConnectError;
use rdma_connect::cm::{self, CmClient, CmClients, CmNews, MakeCmEnds};
use rdma_mem::ProtectionDomain;
use rdma_qp::{Error, PreparedQueuePair, Qpn, QueuePair};

use super::Server;
use super::builder::ServerBuilder;
use super::completions::Received;
use super::event::ServerError;
use super::peers::Tie;
use super::queues::{PeerQueuePair, ServerQueues};
use crate::rendezvous::address::resolve;
use crate::rendezvous::cm::not_prepared;
use crate::rendezvous::files::EventFlags;
use crate::rendezvous::source::Source;

/// The key of the event channel's file.
const EVENTS: u64 = u64::MAX;

/// The maximum number of events that are handled before completions get their turn.
const MANY: u32 = 64;

impl Server {
    /// Listens by rdma_cm, for at most `max_peers` clients at a time, with the default options.
    ///
    /// # Errors
    /// Same errors as [`ServerBuilder::bind_cm`].
    pub fn bind_cm(
        addr: impl ToSocketAddrs,
        pd: &ProtectionDomain,
        max_peers: u32,
    ) -> Result<Self, ConnectError> {
        Self::builder(pd).max_peers(max_peers).bind_cm(addr)
    }

    /// Lets a connected client join.
    pub(super) fn join_cm(&mut self, client: CmClient<PeerQueuePair>) -> Result<(), ServerError> {
        let CmClient { end, id: connection, address, user_bytes, qpn, ended, .. } = client;
        let gone = ended.map(|ended| cm::gone(&ended, connection.context()).0);
        // The client may have sent messages since it was accepted.
        self.early.joining = Some(qpn);
        let drained = self.drain();
        self.early.joining = None;
        let id = self.peers.next_id();
        let (messages, is_complete) = self.early.take(qpn);
        let refused = match self.post_first_receives(id, &end) {
            Ok(lacking) if is_complete => {
                self.seat(id, (end, Tie::Cm(connection)), (address, user_bytes), lacking);
                self.events.extend(messages.into_iter().map(|received| received.event(id)));
                if gone.is_some() {
                    self.end_of_peer(id, gone);
                }
                return Ok(drained?);
            }
            Ok(_) => "it sent too many messages before it had joined".to_owned(),
            Err(error) => error.to_string(),
        };
        self.clients.refuse(format!("{address}: {refused}"));
        self.end(id, end);
        self.peers.skip(id);
        Ok(drained?)
    }

    /// Keeps a message of a client that has not joined yet. A client by rdma_cm may send as soon as it was accepted.
    pub(super) fn received_early(&mut self, qpn: Qpn, received: Received) {
        let Source::Cm(clients) = &self.clients else { return };
        if clients.has(qpn) || self.early.joining == Some(qpn) {
            self.early.put(qpn, received, self.options.max_recv_wr as usize);
        }
    }

    /// Handles events of rdma_cm if its file, which has one of these keys, is ready.
    pub(super) fn serve_cm(&mut self, ready: &[u64]) -> Result<(), ServerError> {
        let refused = self.clients.refused();
        for _ in 0..if ready.contains(&EVENTS) { MANY } else { 1 } {
            let Source::Cm(clients) = &mut self.clients else { break };
            let now = Instant::now();
            clients.expire(now);
            let event = clients.events().next(Some(Duration::ZERO));
            let Some(event) = event.map_err(|error| clients.failed(error))? else { break };
            if let CmNews::Ended(id, end) = clients.handle(event, now)
                && let Some(peer) = self.peers.with(id)
            {
                let (reason, _) = cm::gone(&end, clients.events().context());
                self.end_of_peer(peer, Some(reason));
            }
        }
        if self.clients.refused() != refused
            && let Source::Cm(clients) = &self.clients
        {
            self.early.retain(|qpn| clients.has(qpn));
        }
        Ok(())
    }
}

/// Messages of clients that have not joined yet.
#[derive(Debug, Default)]
pub(super) struct Early {
    messages: Vec<(Qpn, Received)>,
    /// The clients that have sent more messages than are kept.
    lost: BTreeSet<Qpn>,
    /// The client that is joining.
    joining: Option<Qpn>,
}

impl Early {
    fn put(&mut self, qpn: Qpn, received: Received, most: usize) {
        if self.messages.len() < most {
            self.messages.push((qpn, received));
        } else {
            self.lost.insert(qpn);
        }
    }

    /// Removes and returns the messages of a client. The flag is true if these are all.
    fn take(&mut self, qpn: Qpn) -> (Vec<Received>, bool) {
        let (of_client, others) = self.messages.drain(..).partition(|(of, _)| *of == qpn);
        self.messages = others;
        let of_client: Vec<(Qpn, Received)> = of_client;
        (of_client.into_iter().map(|(_, received)| received).collect(), !self.lost.remove(&qpn))
    }

    /// Drops the messages of other clients.
    fn retain(&mut self, is_client: impl Fn(Qpn) -> bool) {
        self.messages.retain(|(qpn, _)| is_client(*qpn));
        self.lost.retain(|qpn| is_client(*qpn));
    }
}

impl ServerBuilder<'_> {
    /// Listens by rdma_cm at the first of these addresses that belongs to this host. Port 0 stands for a free one.
    /// Clients call [`connect_cm`](crate::ChannelBuilder::connect_cm), or are C programs that use librdmacm. Each message
    /// of a C program must fit into [`message_size`](Self::message_size).
    ///
    /// The end of a client is detected like that of a channel from
    /// [`connect_cm`](crate::ChannelBuilder::connect_cm), so [`watch`](Self::watch) has no effect. A client on this host
    /// needs one file, and others none.
    ///
    /// # Errors
    /// Same errors as [`bind`](Self::bind). [`Io`](ConnectError::Io) if the port is in use, or no address belongs to this
    /// host. [`UserBytesTooLong`](ConnectError::UserBytesTooLong) for more than 192 user bytes.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{Channel, ServerEvent, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut server = pd.create_server().max_peers(100).bind_cm("localhost:0")?;
    /// let address = server.local_addr();
    /// let client = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    ///     let mut channel = Channel::connect_cm(address, &pd)?;
    ///     channel.send_from(&pd.allocate_region(5)?)?;
    ///     Ok(())
    /// });
    /// let mut received = 0;
    /// while let Some(event) = server.next(None)? {
    ///     match event {
    ///         ServerEvent::Message { length, .. } => received += length,
    ///         ServerEvent::Left { .. } => break,
    ///         _ => {}
    ///     }
    /// }
    /// assert_eq!(received, 5);
    /// client.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[doc(alias("rdma_listen", "rdma_create_ep"))]
    pub fn bind_cm(self, addr: impl ToSocketAddrs) -> Result<Server, ConnectError> {
        let addresses = resolve(addr)?;
        let (queues, options) = self.parts()?;
        let (limit, user_bytes) = (options.rendezvous_timeout, options.user_bytes.clone());
        let events = EventChannel::open(options.pd.context()).map_err(not_prepared)?;
        Server::of(queues, options, |queues, files| {
            files.add(&events, EVENTS, EventFlags::IN).map_err(|error| ConnectError::Io {
                tried: "preparing to wait for clients".into(),
                source: error.into(),
            })?;
            CmClients::listen(queues, events, &addresses, limit, &user_bytes).map(Source::Cm)
        })
    }
}

impl MakeCmEnds for ServerQueues {
    type Rest = Arc<()>;

    fn split((qp, place): Self::Prepared) -> (PreparedQueuePair, Arc<()>) {
        (qp, place)
    }

    fn finish(place: Arc<()>, qp: QueuePair) -> Result<PeerQueuePair, Error> {
        Ok(PeerQueuePair { qp, place })
    }
}
