//! Servers, whose clients come and go.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_connect::{
    Candidate, CloseReason, ConnectError, Greeting, PeerId, Rejected, TransportError,
};
use rdma_mem::{Buffer, BufferPool, InlineElement, ProtectionDomain};
use rdma_qp::PollSlot;

use self::builder::{ServerBuilder, ServerOptions};
use self::event::{LeftReason, ServerError, ServerEvent};
use self::lent::Lent;
use self::peers::{Peer, Peers};
use self::queues::{PeerQueuePair, ServerQueues};
use self::receives::OwnReceives;
use self::waker::Waker;
use crate::deadline::{Deadline, NO_LIMIT, Next};
use crate::ledger::watch::notice_silence;
use crate::limits::Limits;
use crate::rendezvous::clients::Listening;
use crate::rendezvous::files::{Added, EventFlags, Files};

pub(crate) mod builder;
mod completions;
pub(crate) mod event;
mod lent;
mod peers;
mod queues;
mod receives;
mod wait;
pub(crate) mod waker;

/// A server for clients that come and go: one listener, receives for all, and one call that returns events.
///
/// It is made by [`bind`](Self::bind), or with options by [`create_server`](crate::prelude::CreateChannel::create_server)
/// of the prelude. Clients [connect](crate::Channel::connect) as to a [`ChannelListener`](crate::ChannelListener). The
/// server has no thread of its own: all goes forward while [`next`](Self::next) runs, and what comes meanwhile waits.
///
/// # Memory
/// Messages are received into buffers of a pool, which come to the program by value: it reads them, keeps them, sends
/// them to anybody, or drops them, which gives them back. After the `length` bytes of a message, its buffer still has
/// bytes of an earlier one, maybe of another client: send no more than `length`. There are
/// [`max_recv_wr`](crate::ChannelBuilder::max_recv_wr) buffers of [`message_size`](crate::ServerBuilder::message_size)
/// bytes to receive into, for one client or a thousand; buffers that the program keeps are added to these. Clients
/// share them in a shared receive queue. On a device without one, each client has
/// [`max_recv_wr_per_peer`](crate::ServerBuilder::max_recv_wr_per_peer) of them, and a client that comes when all are
/// given out is told so. If messages arrive faster than `next` returns them, the senders wait: a reliable connection
/// sends again until there is a receive. A client costs a queue pair for `max_send_wr` sends, and one file: on the
/// software device less than 10 KiB of memory.
///
/// # A client that leaves
/// Its stream is watched as by [`watch`](crate::ChannelBuilder::watch): a client whose process has ended, or whose
/// channel was dropped, or whose machine is silent, [leaves](ServerEvent::Left), after the messages that it had sent. So
/// does one whose connection has failed, to which nothing could be sent for
/// [`send_timeout`](crate::ChannelBuilder::send_timeout), and one that is [disconnected](Self::disconnect). Others are
/// not disturbed.
///
/// A client that dies in the middle of a message may cost a receive: SoftRoCE does not give back the buffer that it had
/// taken for that message. Such a buffer is not used again before the server is dropped.
///
/// # Examples
/// Everybody gets back what they send:
/// ```
/// use rdma_channel::{Channel, Server, ServerEvent, prelude::*};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut server = Server::bind("127.0.0.1:0", &pd, 100)?;
/// let address = server.local_addr();
///
/// // This could be another process, or another machine.
/// let client = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
///     let mut channel = Channel::connect(address, &pd)?;
///     let mut data = pd.allocate_region(5)?;
///     data.copy_from_slice(b"hello");
///     channel.send_from(&data)?;
///     data.fill(0);
///     assert_eq!(channel.receive_into(&mut data)?, 5);
///     assert_eq!(*data, *b"hello");
///     Ok(())
/// });
///
/// while let Some(event) = server.next(None)? {
///     match event {
///         ServerEvent::Joined { peer, address, .. } => println!("{peer} came from {address}"),
///         ServerEvent::Message { peer, buffer, length, .. } => {
///             // A client that does not take its answers is not served any more.
///             if server.send(peer, buffer, length).is_err() {
///                 server.disconnect(peer);
///             }
///         }
///         ServerEvent::Left { reason, .. } => {
///             println!("{reason}");
///             break;
///         }
///         _ => {}
///     }
/// }
/// client.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[doc(alias("ibv_create_srq", "ibv_post_srq_recv"))]
pub struct Server {
    /// Dropped first: what is lent is given back when no queue pair is left that might use it.
    clients: Listening<ServerQueues>,
    lent: Lent,
    own: OwnReceives,
    peers: Peers,
    /// Queue pairs that could not be destroyed.
    stuck: Vec<PeerQueuePair>,
    pool: BufferPool,
    options: ServerOptions,
    /// All that `next` sleeps on.
    files: Files,
    ready: Vec<u64>,
    waker: Waker,
    is_woken: bool,
    polled: Box<[Cell<PollSlot>; MANY]>,
    /// An event was asked for and not taken.
    is_armed: bool,
    /// How often completions were taken since the files were looked at.
    since_look: u32,
    /// What has happened and was not told.
    events: VecDeque<ServerEvent>,
    /// Why no clients can be taken, until that was told.
    failure: Option<ConnectError>,
    /// Completions of no request.
    unmatched: u64,
}

/// How many completions are taken at a time.
const MANY: usize = 16;

/// A busy server looks at its files once for so many looks at its completions.
const LOOKS: u32 = 16;

/// How much memory is registered at a time, in bytes, if no message is longer.
const REGION: usize = 1 << 20;

/// The keys of the files; behind them those of the streams of clients that have joined, and then those of others
/// ([`FIRST_KEY`](rdma_connect::FIRST_KEY)).
const COMPLETIONS: u64 = 0;
const WAKER: u64 = 1;
const FIRST_STREAM: u64 = 2;

impl Server {
    /// The options of a new server; as `pd.create_server()` of the [prelude](crate::prelude).
    pub fn builder(pd: &ProtectionDomain) -> ServerBuilder<'_> {
        ServerBuilder::of_server(pd)
    }

    /// Listens at the first of these addresses that can be listened at, for at most so many clients at a time, with the
    /// default options. Port 0 has the kernel choose one.
    ///
    /// # Errors
    /// Those of [`ServerBuilder::bind`].
    pub fn bind(
        addr: impl ToSocketAddrs,
        pd: &ProtectionDomain,
        max_peers: u32,
    ) -> Result<Self, ConnectError> {
        Self::builder(pd).max_peers(max_peers).bind(addr)
    }

    fn of(
        queues: ServerQueues,
        options: ServerOptions,
        addresses: &[SocketAddr],
    ) -> Result<Self, ConnectError> {
        let failed = |source: rustix::io::Errno| {
            let tried = "preparing to wait for clients".into();
            ConnectError::Io { tried, source: source.into() }
        };
        let (lent, peers) =
            (Lent::new(queues.receives.shared().cloned()), Peers::new(options.max_peers));
        let pool = BufferPool::without_windows(&options.pd, options.receive_bytes().min(REGION));
        let (files, waker) = (Files::new()?, Waker::new().map_err(failed)?);
        let timeout = options.rendezvous_timeout;
        let clients = Listening::new(queues, timeout, addresses, files.clone())?;
        let mut server = Self {
            clients,
            lent,
            own: OwnReceives::default(),
            peers,
            stuck: Vec::new(),
            pool,
            options,
            files,
            ready: Vec::new(),
            waker,
            is_woken: false,
            polled: Box::default(),
            is_armed: false,
            since_look: 0,
            events: VecDeque::new(),
            failure: None,
            unmatched: 0,
        };
        let Self { files, clients, waker, .. } = &server;
        let completions = clients.maker().cq.channel();
        let added = completions.map_or(Ok(()), |file| files.add(file, COMPLETIONS, EventFlags::IN));
        added.and_then(|()| files.add(waker, WAKER, EventFlags::IN)).map_err(failed)?;
        server.post_receives().map_err(|error| match error {
            TransportError::IbvError(error) => ConnectError::from(*error),
            other => ConnectError::Io {
                tried: "posting receives".into(),
                source: std::io::Error::other(other),
            },
        })?;
        Ok(server)
    }

    /// Where it listens. With the port that the kernel has chosen, if it was asked for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.clients.address()
    }

    /// Where buffers come from: messages are received into these, and a program can
    /// [allocate](BufferPool::allocate) more of any length, for what it sends.
    #[must_use]
    pub const fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// What ends a wait in [`next`](Self::next) from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// How many clients were refused so far since they were bad, came when there were as many as there can be, or went
    /// before they had joined.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.clients.refused
    }

    /// The number of clients that were dropped so far while half-open; same as
    /// [`dropped_half_open`](crate::ChannelListener::dropped_half_open) of a listener.
    #[must_use]
    pub fn dropped_half_open(&self) -> u64 {
        self.clients.dropped_half_open()
    }

    /// Which client was refused last, by its address, and why. `None` if none was.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.clients.last_refused()
    }

    /// What has happened next. It waits at most so long, with one sleep for new clients, messages, ends of sends and of
    /// clients, and then returns `None`; `None` as the limit is for as long as it takes. With a limit of zero it does
    /// what can be done at once. A [`Waker`] has it return `None` early.
    ///
    /// Events of one client come in order: it joins, its messages come as it has sent them, it leaves.
    ///
    /// # Errors
    /// See [`ServerError`], which says what goes on after each. What happens to one client is no error, but an event.
    pub fn next(&mut self, limit: Option<Duration>) -> Result<Option<ServerEvent>, ServerError> {
        let mut deadline = Deadline::new(limit.unwrap_or(NO_LIMIT));
        let wait = self.limits().wait;
        self.check_process()?;
        loop {
            if let Some(event) = self.events.pop_front() {
                self.note(&event);
                return Ok(Some(event));
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure.into());
            }
            if mem::take(&mut self.is_woken) {
                if !self.is_quiet()? {
                    self.waker.ring();
                }
                return Ok(None);
            }
            self.post_receives()?;
            if self.since_look >= LOOKS {
                self.look(Duration::ZERO)?;
            }
            self.since_look += 1;
            self.join_clients()?;
            self.take_completions()?;
            self.end_leaving();
            if self.has_news() {
                continue;
            }
            match deadline.next(wait, None) {
                Next::Poll => {}
                Next::Rest(left) => self.rest(left.unwrap_or(NO_LIMIT))?,
                Next::End => {
                    self.rest(Duration::ZERO)?;
                    if self.is_quiet()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The program is told this now.
    fn note(&mut self, event: &ServerEvent) {
        match event {
            ServerEvent::Joined { peer, address, .. } => {
                tracing::debug!(server = %self.local_addr(), %peer, %address, "client joined");
            }
            ServerEvent::Left { peer, reason } => {
                self.peers.free(*peer);
                tracing::debug!(server = %self.local_addr(), %peer, %reason, "client left");
            }
            _ => {}
        }
    }

    /// Whether there is something to tell.
    fn has_news(&self) -> bool {
        !self.events.is_empty() || self.failure.is_some() || self.is_woken
    }

    /// Sends the first `length` bytes of a buffer to a client. It never waits: the client has the message when
    /// [`Sent`](ServerEvent::Sent) says so, with the buffer.
    ///
    /// The buffer can be one that a message came in, or any other of [this domain](BufferPool). What is sent to a client
    /// that has left, though [`Left`](ServerEvent::Left) was not told yet, is lost as what was sent just before.
    ///
    /// # Errors
    /// With the buffer: [`WouldBlock`](TransportError::WouldBlock) if
    /// [`max_send_wr`](crate::ChannelBuilder::max_send_wr) sends to this client are outstanding, which it may have to
    /// take first: `Sent` or [`Room`](ServerEvent::Room) then says when one more is possible;
    /// [`PeerLeft`](TransportError::PeerLeft) after `Left`; [`TooLong`](TransportError::TooLong) of more bytes than the
    /// buffer has; [`PostError`](TransportError::PostError) if the buffer is of another domain. If the provider refuses
    /// and does not say whether it has the request, it keeps the buffer, and the client leaves.
    pub fn send(
        &mut self,
        peer: PeerId,
        buffer: Buffer,
        length: usize,
    ) -> Result<(), Rejected<Buffer>> {
        self.send_buffer(peer, buffer, length, None)
    }

    /// The same as [`send`](Self::send), with immediate data.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn send_with_immediate(
        &mut self,
        peer: PeerId,
        buffer: Buffer,
        length: usize,
        immediate: u32,
    ) -> Result<(), Rejected<Buffer>> {
        self.send_buffer(peer, buffer, length, Some(immediate))
    }

    fn send_buffer(
        &mut self,
        id: PeerId,
        buffer: Buffer,
        length: usize,
        immediate: Option<u32>,
    ) -> Result<(), Rejected<Buffer>> {
        let rejected = |value, error| Err(Rejected::new(value, error));
        let most = buffer.len();
        if length > most {
            return rejected(buffer, TransportError::TooLong { length, most });
        }
        let most = self.options.max_send_wr;
        let peer = match self.peers.may_send(id, most) {
            Ok(Some(peer)) => peer,
            Ok(None) => return Ok(()),
            Err(error) => return rejected(buffer, error),
        };
        match self.lent.post_send((id, &peer.end.qp), buffer, length, immediate) {
            Ok(()) => {
                peer.sent();
                Ok(())
            }
            Err((Some(buffer), error)) => rejected(buffer, peer.refused(error)),
            Err((None, error)) => {
                peer.sent();
                let error = peer.refused(error);
                self.fail(id, error);
                Ok(())
            }
        }
    }

    /// Sends a few plain bytes to a client, which are copied by this call, so that nothing comes back. There can be as
    /// many as [`max_inline_data`](crate::ChannelBuilder::max_inline_data) says, by default 64: data that the device
    /// does not take inline is copied into a buffer of the [pool](Self::pool).
    ///
    /// # Errors
    /// Those of [`send`](Self::send), without a buffer; more bytes than fit are
    /// [`TooMuchInline`](rdma_qp::PostErrorKind::TooMuchInline).
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn send_inline(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), TransportError> {
        let most = self.options.max_send_wr;
        let Some(to) = self.peers.may_send(peer, most)? else { return Ok(()) };
        let given = to.end.qp.capabilities().max_inline_data as usize;
        let posted = if bytes.len() > given && bytes.len() <= self.options.inline as usize {
            let mut buffer = self.pool.allocate(bytes.len())?;
            buffer.copy_from_slice(bytes);
            self.lent.post_copy((peer, &to.end.qp), buffer)
        } else {
            self.lent.post_inline((peer, &to.end.qp), InlineElement::new_checked(bytes)?)
        };
        match posted {
            Ok(()) => to.sent(),
            Err(error) if error.posted() == 0 => return Err(to.refused(error)),
            Err(error) => {
                to.sent();
                let error = to.refused(error);
                self.fail(peer, error);
            }
        }
        Ok(())
    }

    /// Ends the connection to a client, whose operations fail. [`Left`](ServerEvent::Left) comes when its buffers are back.
    /// What was sent and is outstanding may have arrived or not. One that has left is no error.
    pub fn disconnect(&mut self, peer: PeerId) {
        self.leave(peer, LeftReason::Disconnected);
    }

    const fn limits(&self) -> &Limits {
        &self.options.limits
    }

    fn check_process(&self) -> Result<(), TransportError> {
        let context = self.options.pd.context();
        context.check_process().map_err(|_| TransportError::Closed {
            reason: CloseReason::Forked,
            peer: None,
            event: None,
        })
    }

    fn leave(&mut self, peer: PeerId, reason: LeftReason) {
        self.peers.leave(peer, reason, self.options.limits.flush);
    }

    fn fail(&mut self, peer: PeerId, error: TransportError) {
        self.leave(peer, LeftReason::Failed(error));
    }

    /// Has the clients join that are connected, as far as there is room.
    fn join_clients(&mut self) -> Result<(), ServerError> {
        while self.peers.has_room() {
            let Some(client) = self.clients.take() else { break };
            self.join(client)?;
        }
        Ok(())
    }

    fn join(&mut self, mut client: Candidate<Added, PeerQueuePair>) -> Result<(), ServerError> {
        // What is there of an earlier queue pair with the same number is nobody's.
        self.drain()?;
        let id = self.peers.next_id();
        let (stream, lacking) = match self.accept(id, &mut client) {
            Ok(accepted) => accepted,
            Err(error) => {
                self.end(id, client.end);
                self.peers.skip(id);
                return error.map_or(Ok(()), |error| Err(error.into()));
            }
        };
        let Candidate { end, address, greeting, .. } = client;
        let user_bytes = greeting.user_bytes;
        self.peers.join(Peer::new(end, stream));
        (0..lacking).for_each(|_| self.own.owe(id));
        self.events.push_back(ServerEvent::Joined { peer: id, address, user_bytes });
        Ok(())
    }

    /// Accepts a client that will have that ID. Returns its stream, and the receives that there is no memory for now.
    ///
    /// # Errors
    /// None of the server's if the client was refused, which is counted.
    fn accept(
        &mut self,
        id: PeerId,
        client: &mut Candidate<Added, PeerQueuePair>,
    ) -> Result<(Added, u32), Option<ConnectError>> {
        let key = FIRST_STREAM + id.index() as u64;
        let lacking = self.post_first_receives(id, &client.end).map_err(|error| {
            self.clients.refuse(format!("{}: {error}", client.address));
            client.reject("the server cannot receive from this client");
            None
        })?;
        let user_bytes = self.options.user_bytes.clone();
        let greeting = Greeting { user_bytes, watches: true, talks: false };
        let stream = client.accept(greeting).map_err(|error| {
            self.clients.refuse(error.to_string());
            None
        })?;
        notice_silence(stream.stream(), self.options.watch);
        stream.change(key, EventFlags::RDHUP).map_err(|error| {
            let tried = format!("watching the client at {}", client.address);
            Some(ConnectError::Io { tried, source: error.into() })
        })?;
        Ok((stream, lacking))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for (id, peer) in self.peers.take_all() {
            self.end(id, peer.end);
        }
        let count = self.unmatched;
        if count > 0 {
            tracing::debug!(server = %self.local_addr(), count, "completions matched no request");
        }
    }
}

/// Is readable when there is something to do for [`next`](Server::next), once that has returned `None`: for `poll`,
/// `epoll`, and what is made of them. A limit of zero then takes what there is.
///
/// With [`Wait::Spin`](crate::Wait::Spin) there is no file for messages and ends of sends: then it tells of clients alone.
///
/// Time is not among it. A program that sleeps on the file without a limit ends slow clients of the rendezvous late, and
/// those that take nothing. It may also leave new clients out: after too many files were open, or while too many clients
/// are half-open. Sleep for a second at most.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peers, receives) = (self.peers.len(), self.lent.receives());
        write!(f, "Server({:?}, {peers} that have joined, {receives} receives)", self.clients)
    }
}
