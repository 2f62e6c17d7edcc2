//! Servers for a changing set of clients.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_connect::{
    Candidate, CloseReason, ConnectError, Greeting, KeepAlive, PeerId, Rejected, TransportError,
};
use rdma_mem::{Buffer, BufferPool, InlineElement, ProtectionDomain};
use rdma_qp::PollSlot;

use self::builder::{ServerBuilder, ServerOptions};
use self::event::{LeftReason, ServerError, ServerEvent};
use self::lent::Lent;
use self::peers::{Peer, Peers, Tie};
use self::queues::{PeerQueuePair, ServerQueues};
use self::receives::OwnReceives;
use self::waker::Waker;
use crate::deadline::{Deadline, NO_LIMIT, Next};
use crate::limits::Limits;
use crate::rendezvous::files::{Added, EventFlags, Files};
use crate::rendezvous::source::Source;

pub(crate) mod builder;
#[cfg(feature = "cm")]
mod cm;
mod completions;
pub(crate) mod event;
mod lent;
mod peers;
mod queues;
mod receives;
mod wait;
pub(crate) mod waker;

/// A server for a changing set of clients: one listener, receives for all clients, and one call that returns events.
///
/// Create it with [`bind`](Self::bind), or with options through
/// [`create_server`](crate::prelude::CreateChannel::create_server) from the prelude. Clients
/// [connect](crate::Channel::connect) in the same way as to a [`ChannelListener`](crate::ChannelListener). The server
/// has no thread. It makes progress only while [`next`](Self::next) runs; between calls, clients and messages wait.
///
/// # Memory
/// Messages are received into buffers of a pool, and the program gets these buffers by value. It can read them, keep
/// them, send them to any client, or drop them, which returns them to the pool. A buffer may be longer than its
/// message. The bytes after the message's `length` may come from an earlier message, possibly from another client, so
/// never send more than `length` bytes.
///
/// There are [`max_recv_wr`](crate::ChannelBuilder::max_recv_wr) receive buffers of
/// [`message_size`](crate::ServerBuilder::message_size) bytes, for one client or a thousand. Buffers that the program
/// keeps are replaced by new ones. Clients share the receives in a shared receive queue. If the device does not support
/// one, each client has [`max_recv_wr_per_peer`](crate::ServerBuilder::max_recv_wr_per_peer) receives of its own. A
/// client that connects when no receives are left is refused with that reason.
///
/// If messages arrive faster than `next` returns them, the senders wait, because a reliable connection retries until a
/// receive is posted. A client needs a queue pair for `max_send_wr` sends, and one file descriptor. On the software
/// device it needs less than 10 KiB of memory.
///
/// # A client that leaves
/// The server watches the streams of its clients, like [`watch`](crate::ChannelBuilder::watch). A client
/// [leaves](ServerEvent::Left) when its process ends, its channel is dropped, or its machine stops responding. Messages
/// that it sent before are returned first. A client also leaves when:
/// - its connection fails;
/// - sends to it are outstanding, and no send has completed for [`send_timeout`](crate::ChannelBuilder::send_timeout);
/// - it is [disconnected](Self::disconnect).
///
/// Other clients are not affected.
///
/// A client that dies in the middle of a message may cost a receive. SoftRoCE does not return the message's buffer, so
/// the buffer is not reused until the server is dropped.
///
/// # Examples
/// An echo server:
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
///             // Stop serving a client that does not receive its answers.
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
    /// Dropped first, so that memory is returned only after the last queue pair that may use it is destroyed.
    clients: Source<ServerQueues>,
    lent: Lent,
    own: OwnReceives,
    peers: Peers,
    /// Queue pairs that could not be destroyed.
    stuck: Vec<PeerQueuePair>,
    pool: BufferPool,
    options: ServerOptions,
    /// All files that `next` waits for.
    files: Files,
    ready: Vec<u64>,
    waker: Waker,
    is_woken: bool,
    polled: Box<[Cell<PollSlot>; MANY]>,
    /// Whether a completion event was requested and has not arrived yet.
    is_armed: bool,
    /// The number of polls since the server last checked its files.
    polls_since_check: u32,
    /// Events that the program has not received yet.
    events: VecDeque<ServerEvent>,
    /// The reason why clients cannot be accepted; `None` once the program has received this error.
    failure: Option<ConnectError>,
    /// The number of completions that matched no request.
    unmatched: u64,
    /// The messages of clients by rdma_cm that have not joined yet.
    #[cfg(feature = "cm")]
    early: cm::Early,
}

/// Completions polled per call.
const MANY: usize = 16;

/// The number of polls for completions after which a busy server checks its files.
const POLLS_PER_CHECK: u32 = 16;

/// The maximum size in bytes of a region that the pool registers, unless a message can be longer.
const REGION: usize = 1 << 20;

/// The key of the completion channel's file.
const COMPLETIONS: u64 = 0;
/// The key of the waker's file.
const WAKER: u64 = 1;
/// The first key of joined clients' streams. The keys of other clients' streams begin at
/// [`FIRST_KEY`](rdma_connect::FIRST_KEY).
const FIRST_STREAM: u64 = 2;

impl Server {
    /// Returns a builder for a new server. The [prelude](crate::prelude) has a shorter form: `pd.create_server()`.
    pub fn builder(pd: &ProtectionDomain) -> ServerBuilder<'_> {
        ServerBuilder::of_server(pd)
    }

    /// Listens on the first usable address, for at most `max_peers` clients at a time, with the default options. For
    /// port 0, the kernel chooses a port.
    ///
    /// # Errors
    /// Same errors as [`ServerBuilder::bind`].
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
        connect: impl FnOnce(ServerQueues, &Files) -> Result<Source<ServerQueues>, ConnectError>,
    ) -> Result<Self, ConnectError> {
        let failed = |source: rustix::io::Errno| {
            let tried = "preparing to wait for clients".into();
            ConnectError::Io { tried, source: source.into() }
        };
        let (lent, peers) =
            (Lent::new(queues.receives.shared().cloned()), Peers::new(options.max_peers));
        let pool = BufferPool::without_windows(&options.pd, options.receive_bytes().min(REGION));
        let (files, waker) = (Files::new()?, Waker::new().map_err(failed)?);
        let clients = connect(queues, &files)?;
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
            polls_since_check: 0,
            events: VecDeque::new(),
            failure: None,
            unmatched: 0,
            #[cfg(feature = "cm")]
            early: cm::Early::default(),
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

    /// The address of the server. If port 0 was requested, it contains the port that the kernel chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.clients.address()
    }

    /// The pool that the receive buffers come from. A program can also [allocate](BufferPool::allocate) buffers of any
    /// length from the pool, and send from them.
    #[must_use]
    pub const fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// A handle that ends a wait in [`next`](Self::next) from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The number of clients refused so far. They were invalid, connected when the server was full, or went away before
    /// they joined.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.clients.refused()
    }

    /// The number of half-open clients dropped so far, like
    /// [`dropped_half_open`](crate::ChannelListener::dropped_half_open) of a listener.
    #[must_use]
    pub fn dropped_half_open(&self) -> u64 {
        self.clients.dropped_half_open()
    }

    /// The address of the client that was refused last, with the reason. `None` if no client was refused.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.clients.last_refused()
    }

    /// Returns the next event. Sleeps until a client connects, sends a message or leaves, or until a send completes.
    /// Returns `None` if nothing happens within `limit`; without a limit, it waits until there is an event. With a
    /// limit of zero, it does only what is possible without waiting. A [`Waker`] makes it return `None` early.
    ///
    /// Events of one client are in order: the client joins, its messages arrive in the order in which it sent them, and
    /// finally it leaves.
    ///
    /// # Errors
    /// See [`ServerError`] for the state of the server after each error. Failures of one client are events, not errors.
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
            if self.polls_since_check >= POLLS_PER_CHECK {
                self.wait_for_files(Duration::ZERO)?;
            }
            self.polls_since_check += 1;
            self.join_clients()?;
            self.take_completions()?;
            self.end_leaving();
            if self.has_event() {
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

    /// Logs an event that is being returned to the program. If a client has left, its place becomes free.
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

    /// Returns true if there is something to report.
    fn has_event(&self) -> bool {
        !self.events.is_empty() || self.failure.is_some() || self.is_woken
    }

    /// Sends the first `length` bytes of a buffer to a client. Never waits. The event [`Sent`](ServerEvent::Sent)
    /// reports that the client has received the message, and returns the buffer.
    ///
    /// The buffer can come from a received message, or from any [pool](BufferPool) of the same protection domain. A
    /// client may have left although its [`Left`](ServerEvent::Left) has not been returned yet. A message to such a
    /// client is lost, like others that were recently sent to it.
    ///
    /// # Errors
    /// Each error returns the buffer:
    /// - [`WouldBlock`](TransportError::WouldBlock) if [`max_send_wr`](crate::ChannelBuilder::max_send_wr) sends to
    ///   this client are outstanding, perhaps because it receives too slowly. The next `Sent` or
    ///   [`Room`](ServerEvent::Room) shows that one more send is possible;
    /// - [`PeerLeft`](TransportError::PeerLeft) after `Left`;
    /// - [`TooLong`](TransportError::TooLong) if the buffer is shorter than `length`;
    /// - [`PostError`](TransportError::PostError) if the buffer belongs to another domain.
    ///
    /// If the provider refuses the request without reporting whether it has accepted it, the server keeps the buffer,
    /// and the client leaves.
    pub fn send(
        &mut self,
        peer: PeerId,
        buffer: Buffer,
        length: usize,
    ) -> Result<(), Rejected<Buffer>> {
        self.send_buffer(peer, buffer, length, None)
    }

    /// Like [`send`](Self::send), with immediate data.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send).
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

    /// Sends a few plain bytes to a client. The bytes are copied during the call, so no buffer is returned later. The
    /// maximum number of bytes is set with [`max_inline_data`](crate::ChannelBuilder::max_inline_data); the default is
    /// 64. If the device cannot send the bytes inline, they are copied into a buffer of the [pool](Self::pool).
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send), without a buffer. Too many bytes fail with
    /// [`TooMuchInline`](rdma_qp::PostErrorKind::TooMuchInline). If the pool has no buffer for the copy, its error is
    /// returned.
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

    /// Closes the connection to a client, so outstanding operations on the connection fail. [`Left`](ServerEvent::Left)
    /// follows when their buffers are available again. Outstanding messages may or may not have arrived. Disconnecting
    /// a client that has already left is not an error.
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

    /// Lets connected clients join until the server is full.
    fn join_clients(&mut self) -> Result<(), ServerError> {
        while self.peers.has_room() {
            match &mut self.clients {
                Source::Tcp(clients) => match clients.take() {
                    Some(client) => self.join(client)?,
                    None => break,
                },
                #[cfg(feature = "cm")]
                Source::Cm(clients) => match clients.take() {
                    Some(client) => self.join_cm(client)?,
                    None => break,
                },
            }
        }
        Ok(())
    }

    fn join(&mut self, mut client: Candidate<Added, PeerQueuePair>) -> Result<(), ServerError> {
        // Discards completions of an earlier queue pair with the same number.
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
        self.seat(id, (end, Tie::Stream(stream)), (address, greeting.user_bytes), lacking);
        Ok(())
    }

    /// Adds a client that has joined. This number of its receives could not be posted for lack of memory.
    fn seat(
        &mut self,
        id: PeerId,
        (end, tie): (PeerQueuePair, Tie),
        (address, user_bytes): (SocketAddr, Box<[u8]>),
        lacking: u32,
    ) {
        self.peers.join(Peer::new(end, tie));
        (0..lacking).for_each(|_| self.own.owe(id));
        self.events.push_back(ServerEvent::Joined { peer: id, address, user_bytes });
    }

    /// Accepts a client, which gets this ID. Returns its stream, and the number of receives that could not be posted
    /// for lack of memory.
    ///
    /// # Errors
    /// `None` if only this client was refused and the server itself has not failed. The refusal is counted.
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
        KeepAlive::within(self.options.watch).set(stream.stream());
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

/// The server's file. If the last call of [`next`](Server::next) returned `None`, the file becomes readable when there
/// is work for `next`. Use the file with `poll`, `epoll`, or an event loop built on them. When it is readable, call
/// `next` with a limit of zero.
///
/// With [`Wait::Spin`](crate::Wait::Spin) the file does not become readable for messages and completed sends, only when
/// clients connect or leave.
///
/// The file does not become readable when a time limit expires. If a program sleeps on it without a limit, clients that
/// are slow in the rendezvous or receive nothing are dropped late. New clients may also be delayed if the process had
/// too many files open, or while too many clients are half-open. Therefore, sleep for at most a second at a time.
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
