//! Connections by rdma_cm.

pub(crate) mod incoming;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_cm::{Connecting, ConnectionId, End, Event, EventChannel, IdToken, Replied, Step};
use rdma_connect::cm::{self, CmClient, CmClients, MakeCmEnds};
use rdma_connect::{CloseReason, ConnectError, Farewell};
use rdma_qp::{Error, PreparedQueuePair, QueuePair, QueuePairBuilder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

use self::incoming::{CmIncoming, Undecided};
use super::frame::Frame;
use super::maker::Maker;
use super::negotiate::blocking;
use super::options::ConnectionOptions;
use super::shared::{Member, Shared, Task};
use crate::connection::Connection;
use crate::driver::Driver;
use crate::driver::file::readable;
use crate::link::Inner;
use crate::prepared::{PreparedConnection, Room};
use crate::sync::now;

/// The maximum number of events that a blocking thread handles while it has the listener's lock. Each of them may create
/// a queue pair.
const MANY: usize = 4;

impl Driver {
    /// Connects by rdma_cm to the listener at this address. Returns the connection and the other end's
    /// [`user_bytes`](ConnectionOptions::user_bytes).
    ///
    /// The listener is [`listen_cm`](Self::listen_cm), a channel's listener or server of `rdma-channel`,
    /// [`rdma_cm::Listener`], or a C program that uses librdmacm. Both ends can send once this returns. If the future is
    /// dropped early, the request is cancelled.
    ///
    /// There is no control connection, so memory cannot be lent, and the connection cannot be renewed. This end has at
    /// most 52 user bytes, and the server at most 192. The private data of a C program is returned as a whole, of 196
    /// bytes. The end of the peer is detected as by [`connect`](Self::connect), except that `peer_timeout` and `heartbeat`
    /// have no effect. If the peer's process on another host is killed, only requests fail, after their retries.
    ///
    /// # Errors
    /// | | |
    /// |---|---|
    /// | [`NobodyListens`](ConnectError::NobodyListens) | the port has no listener |
    /// | [`Rejected`](ConnectError::Rejected) | the server rejected this client, or the two queue pairs do not fit |
    /// | [`Busy`](ConnectError::Busy) | the server is full, or has no queue pair for this client: try again later |
    /// | [`Timeout`](ConnectError::Timeout) | connecting took longer than the [`rendezvous_timeout`](ConnectionOptions::rendezvous_timeout) |
    /// | [`Closed`](ConnectError::Closed) | the server ended meanwhile |
    /// | [`Io`](ConnectError::Io) | the device does not reach the address, too many files are open, or the driver has ended |
    /// | [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) | the name has no address |
    /// | [`UserBytesTooLong`](ConnectError::UserBytesTooLong) | there are more than 52 user bytes |
    /// | [`Verbs`](ConnectError::Verbs) | a queue pair cannot be created with these options, or cannot be connected |
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    ///
    /// # Examples
    /// See [`CmListener`].
    #[doc(alias("rdma_cm", "rdma_connect", "cm_connect"))]
    pub async fn connect_cm(
        &self,
        addr: impl ToSocketAddrs,
        options: impl Into<ConnectionOptions>,
    ) -> Result<(Connection, Box<[u8]>), ConnectError> {
        let device = self.context().device().name();
        let span = tracing::debug_span!("connect", device, peer = Empty, qpn = Empty);
        self.connect_cm_in_span(addr, options.into()).instrument(span).await
    }

    async fn connect_cm_in_span(
        &self,
        addr: impl ToSocketAddrs,
        options: ConnectionOptions,
    ) -> Result<(Connection, Box<[u8]>), ConnectError> {
        let data = cm::request(&options.user_bytes)?;
        self.check()?;
        let addresses = resolve(addr).await?;
        let limit = options.rendezvous_timeout;
        let first = *addresses.first().ok_or(ConnectError::NoAddress)?;
        let (driver, qp) = (self.clone(), options.qp.clone());
        let connects = async {
            let (connecting, room, address, events) = blocking(move || {
                let failed = |error| cm::not_connected(error, first, limit);
                let events = EventChannel::shared(driver.context()).map_err(failed)?;
                let resolved = events.resolve(&*addresses).map_err(failed)?;
                let address = resolved.address();
                let PreparedConnection { qp, room } = driver.prepare(qp)?;
                let failed = |error| cm::not_connected(error, address, limit);
                let connecting = resolved.connect(qp, &data).map_err(failed)?;
                Ok((connecting, room, address, events))
            })
            .await?;
            Span::current().record("peer", display(address));
            let failed = |error| cm::not_connected(error, address, limit);
            let file = watch(connecting.file().map_err(failed)?, address)?;
            let replied = answered(connecting, &events, &file, failed).await?;
            let user_bytes = cm::decode(replied.private_data()).0.into();
            let (qp, id) = replied.establish().map_err(failed)?.into_parts();
            let file = watch(id.file().map_err(failed)?, address)?;
            Ok::<_, ConnectError>((room.connection(qp), id, file, address, user_bytes))
        };
        let connected = timeout(limit, connects).await;
        let timed_out = |_| cm::unanswered(first, limit);
        let (connection, id, file, address, user_bytes) = connected.map_err(timed_out)??;
        Span::current().record("qpn", display(connection.qpn()));
        keep(connection.inner(), (id, file), (address, true), &options);
        Ok((connection, user_bytes))
    }

    /// Listens by rdma_cm at the first of these addresses that belongs to this host, and turns each client into a
    /// connection with these options. Port 0 stands for a free one. Clients call [`connect_cm`](Self::connect_cm), or are
    /// C programs that use librdmacm.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the port is in use, no address belongs to this host, or the driver has ended;
    /// [`ConnectError::Resolve`] and [`ConnectError::NoAddress`] as in [`connect_cm`](Self::connect_cm);
    /// [`ConnectError::UserBytesTooLong`] for more than 192 user bytes; [`ConnectError::Verbs`] if no connection can be
    /// made with these options.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    #[doc(alias("rdma_cm", "rdma_listen"))]
    pub async fn listen_cm(
        &self,
        addr: impl ToSocketAddrs,
        options: impl Into<ConnectionOptions>,
    ) -> Result<CmListener, ConnectError> {
        let options = options.into();
        // Panics here in a runtime without time.
        drop(sleep(Duration::ZERO));
        self.check()?;
        let addresses = resolve(addr).await?;
        let first = *addresses.first().ok_or(ConnectError::NoAddress)?;
        let maker = Maker { driver: self.clone(), qp: options.qp.clone() };
        let (limit, user_bytes) = (options.rendezvous_timeout, options.user_bytes.clone());
        let clients = blocking(move || {
            // Checks here that a queue pair can have these options, rather than when the first client connects.
            drop(maker.driver.prepare(maker.qp.clone())?);
            let opened = EventChannel::open(maker.driver.context());
            let events = opened.map_err(|error| cm::not_listening(error, first))?;
            CmClients::listen(maker, events, &addresses, limit, &user_bytes)
        })
        .await?;
        let address = clients.address();
        let file = watch(clients.events(), address)?;
        let (clients, news) = (Arc::new(Mutex::new(clients)), Arc::default());
        Ok(CmListener { clients, news, file, address, options })
    }
}

/// Listens for clients of rdma_cm and turns them into connections. Created by [`Driver::listen_cm`].
///
/// Clients make progress only while a task awaits [`accept`](Self::accept) or [`incoming`](Self::incoming). At most 128
/// requests wait meanwhile. `accept` accepts each request at once, and waits for no particular client. One that does not
/// confirm is dropped after [`rendezvous_timeout`](ConnectionOptions::rendezvous_timeout), or earlier to make room for
/// another one. Queue pairs are created on tokio's blocking threads.
///
/// Dropping the listener rejects the clients that have not been accepted; accepted connections continue.
///
/// # Examples
/// ```
/// use rdma_async::{ConnectionOptions, Driver};
/// use rdma_mem::BufferPool;
///
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let context = rdma_mem::open_device("soft0")?;
/// let pd = context.allocate_pd()?;
/// let driver = Driver::spawn(&context)?;
/// let options = ConnectionOptions::new(&pd);
/// let listener = driver.listen_cm("localhost:0", options.clone()).await?;
/// let address = listener.local_addr();
///
/// // This could be another process, or another machine.
/// let client = tokio::spawn({
///     let (driver, pool) = (driver.clone(), BufferPool::new(&pd));
///     async move {
///         let (connection, _) = driver.connect_cm(address, options).await?;
///         let mut hello = pool.allocate(5)?;
///         hello.copy_from_slice(b"hello");
///         connection.send(hello).await?;
///         Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
///     }
/// });
///
/// let connection = listener.accept().await?;
/// let received = connection.receive(BufferPool::new(&pd).allocate(64)?).await?;
/// assert_eq!(received.memory[..received.length], *b"hello");
/// client.await??;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()) }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct CmListener {
    clients: Arc<Mutex<CmClients<Maker>>>,
    news: Arc<News>,
    file: AsyncFd<OwnedFd>,
    address: SocketAddr,
    options: ConnectionOptions,
}

/// Notified when a call leaves something to another one.
#[derive(Debug, Default)]
struct News {
    /// A request that waits for the program. Calls of both kinds wait for it.
    request: Notify,
    /// A connected client, a failure of the listener, or more events. Only calls of `accept` wait for it.
    connected: Notify,
}

impl CmListener {
    /// Returns the address at which the listener listens, with the port that was selected for port 0.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a client, and accepts it with the [`user_bytes`](ConnectionOptions::user_bytes) of the options. If a
    /// client is already gone, waits for the next one. Dropping the future early loses no client.
    ///
    /// # Errors
    /// [`ConnectError::Verbs`] if no queue pair could be created for a client, which is sent the reason.
    /// [`ConnectError::Io`] if the system cannot wait, or too many files are open. The listener can be used again.
    #[doc(alias = "rdma_accept")]
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        self.accept_with_user_bytes().await.map(|(connection, _)| connection)
    }

    /// Like [`accept`](Self::accept), and also returns the client's [`user_bytes`](ConnectionOptions::user_bytes), or all
    /// 56 bytes of the private data of a C program. The client is not authenticated.
    ///
    /// # Errors
    /// Same errors as [`accept`](Self::accept).
    pub async fn accept_with_user_bytes(&self) -> Result<(Connection, Box<[u8]>), ConnectError> {
        loop {
            if let Some(client) = self.take()? {
                let ended = client.look_for_end();
                let CmClient { end: connection, id, address, user_bytes, .. } = client;
                if let Some(end) = ended {
                    self.locked().refuse(format!("{address}: {end}"));
                    continue;
                }
                let failed =
                    |error| cm::failed(error, || format!("watching the client at {address}"));
                let file = watch(id.file().map_err(failed)?, address)?;
                keep(connection.inner(), (id, file), (address, false), &self.options);
                return Ok((connection, user_bytes));
            }
            self.progress(serve, true).await?;
        }
    }

    /// Waits for a client's request, which the program then [accepts](CmIncoming::accept) with an answer or
    /// [rejects](CmIncoming::reject). If a client has already withdrawn its request, `accept` fails. Dropping the future
    /// early loses no client.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the system cannot wait, or too many files are open. The listener can be used again.
    ///
    /// # Examples
    /// See [`CmIncoming`].
    #[doc(alias = "rdma_get_request")]
    pub async fn incoming(&self) -> Result<CmIncoming, ConnectError> {
        loop {
            if let Some(incoming) = self.take_request() {
                return Ok(incoming);
            }
            self.progress(hold, false).await?;
        }
    }

    fn take_request(&self) -> Option<CmIncoming> {
        let mut clients = self.locked();
        let request = clients.take_request()?;
        if clients.holds_requests() {
            self.news.request.notify_one();
        }
        let (events, driver) = (clients.events().clone(), clients.maker().driver.clone());
        let undecided = Undecided::new(request.id(), Arc::downgrade(&self.clients));
        Some(CmIncoming::new(request, undecided, events, driver, &self.options))
    }

    /// Handles events of the listener, or waits until there may be some. `accepts` states whether the caller waits for
    /// connected clients as well as for requests.
    async fn progress(
        &self,
        handle: fn(&mut CmClients<Maker>, &News) -> Result<bool, ConnectError>,
        accepts: bool,
    ) -> Result<(), ConnectError> {
        let (clients, news) = (Arc::clone(&self.clients), Arc::clone(&self.news));
        let handles = move || handle(&mut locked(&clients), &news);
        if blocking(handles).await? {
            return Ok(());
        }
        let next_end = self.locked().next_end(now());
        // The readiness is cleared before events are handled, so that none is missed.
        tokio::select! {
            ready = self.file.readable() => {
                look_again(ready.map_err(|error| not_watched(error, self.address))?).await;
            }
            () = self.news.request.notified() => {}
            () = self.news.connected.notified(), if accepts => {}
            () = sleep(next_end) => {}
        }
        Ok(())
    }

    fn take(&self) -> Result<Option<CmClient<Connection>>, ConnectError> {
        let mut clients = self.locked();
        match clients.take() {
            None => clients.take_failure().map_or(Ok(None), Err),
            client => {
                if clients.has_news() {
                    self.news.connected.notify_one();
                }
                Ok(client)
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, CmClients<Maker>> {
        locked(&self.clients)
    }

    /// Returns the number of clients that the listener refused, or that disconnected before the program accepted them.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.locked().refused()
    }

    /// Returns the number of refused clients that had not confirmed in time.
    #[must_use]
    pub fn dropped_half_open(&self) -> u64 {
        self.locked().dropped_half_open()
    }

    /// Returns the address of the last refused client, with the reason, or `None` if none was refused.
    #[must_use]
    pub fn last_refused(&self) -> Option<String> {
        self.locked().last_refused().map(str::to_owned)
    }
}

impl fmt::Debug for CmListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmListener({:?})", self.locked())
    }
}

fn locked(clients: &Mutex<CmClients<Maker>>) -> MutexGuard<'_, CmClients<Maker>> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles events of a listener until there is a request for the program. Returns true if there is one.
///
/// The call of `incoming` that waits for this may have been dropped, so another one is notified of the request. A call of
/// `accept` is notified of clients that this call connects.
fn hold(clients: &mut CmClients<Maker>, news: &News) -> Result<bool, ConnectError> {
    let holds = hold_next(clients);
    if clients.has_news() {
        news.connected.notify_one();
    }
    if clients.holds_requests() {
        news.request.notify_one();
    }
    holds
}

fn hold_next(clients: &mut CmClients<Maker>) -> Result<bool, ConnectError> {
    loop {
        let now = now();
        clients.expire(now);
        if clients.holds_requests() {
            return Ok(true);
        }
        let event = clients.events().next_of(|id| clients.wants(id), Some(Duration::ZERO));
        match event.map_err(|error| clients.failed(error))? {
            Some(event) => _ = clients.handle_or_hold(event, now),
            None => return Ok(false),
        }
    }
}

/// Handles events of a listener that have arrived. Returns true if there were any, or a client waits for the program.
///
/// The call of `accept` that waits for this may have been dropped, so another one is notified of what is left.
fn serve(clients: &mut CmClients<Maker>, news: &News) -> Result<bool, ConnectError> {
    if clients.accept_held(now()) {
        news.connected.notify_one();
        return Ok(true);
    }
    for handled in 0..MANY {
        let now = now();
        clients.expire(now);
        let event = clients.events().next_of(|id| clients.wants(id), Some(Duration::ZERO));
        match event.map_err(|error| clients.failed(error))? {
            Some(event) => _ = clients.handle(event, now),
            None => {
                let has_news = clients.has_news();
                if has_news {
                    news.connected.notify_one();
                }
                return Ok(handled > 0 || has_news);
            }
        }
    }
    news.connected.notify_one();
    Ok(true)
}

impl MakeCmEnds for Maker {
    type Rest = Room;

    fn split(prepared: PreparedConnection) -> (PreparedQueuePair, Room) {
        (prepared.qp, prepared.room)
    }

    fn finish(room: Room, qp: QueuePair) -> Result<Connection, Error> {
        Ok(room.connection(qp))
    }
}

async fn resolve(addr: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, ConnectError> {
    let addresses = lookup_host(addr).await;
    Ok(addresses.map_err(|source| ConnectError::Resolve { source })?.collect())
}

fn not_watched(source: io::Error, address: SocketAddr) -> ConnectError {
    ConnectError::Io { tried: format!("watching the connection manager at {address}"), source }
}

/// Registers a file with the runtime.
fn watch(file: impl AsFd, address: SocketAddr) -> Result<AsyncFd<OwnedFd>, ConnectError> {
    readable(file.as_fd()).map_err(|error| not_watched(error, address))
}

/// Clears the readiness of a file, unless the file is still readable. A call receives only a part of what has arrived, or
/// leaves it to a thread that waits for the channel.
async fn look_again(mut ready: AsyncFdReadyGuard<'_, OwnedFd>) {
    let mut files = [PollFd::new(ready.get_inner(), PollFlags::IN)];
    if poll(&mut files, Some(&Timespec::default())) == Ok(0) {
        ready.clear_ready();
    } else {
        yield_now().await;
    }
}

/// Waits for the next event of a connection.
async fn event_of(
    id: IdToken,
    events: &EventChannel,
    file: &AsyncFd<OwnedFd>,
    failed: impl Fn(rdma_cm::Error) -> ConnectError,
) -> Result<Event, ConnectError> {
    let next = || events.next_of(|of| of == id, Some(Duration::ZERO)).map_err(&failed);
    loop {
        if let Some(event) = next()? {
            return Ok(event);
        }
        let ready = file.readable().await;
        let source = |source| ConnectError::Io { tried: "waiting for an answer".into(), source };
        let ready = ready.map_err(source)?;
        match next()? {
            Some(event) => return Ok(event),
            None => look_again(ready).await,
        }
    }
}

/// Waits for the listener's answer, and connects the queue pair.
async fn answered(
    connecting: Connecting,
    events: &EventChannel,
    file: &AsyncFd<OwnedFd>,
    failed: impl Fn(rdma_cm::Error) -> ConnectError,
) -> Result<Replied, ConnectError> {
    let event = event_of(connecting.id(), events, file, &failed).await?;
    // A device may take long to connect a queue pair.
    match blocking(move || Ok(connecting.advance(event))).await? {
        Step::Next(replied) => Ok(replied),
        Step::Failed(error) => Err(failed(error)),
        _ => Err(failed(End::PeerGone.into())),
    }
}

/// Keeps rdma_cm's connection, and ends the connection when the peer is gone.
fn keep(
    inner: &Arc<Inner>,
    (id, file): (ConnectionId, AsyncFd<OwnedFd>),
    (address, is_client): (SocketAddr, bool),
    options: &ConnectionOptions,
) {
    let limits = (options.rendezvous_timeout, options.operation_timeout);
    let leases = (None, options.lease_margin);
    let shared = Arc::new(Shared::new((address, None), is_client, false, limits, leases));
    let task = Arc::new(Task(Arc::clone(&shared)));
    let qp: QueuePairBuilder<'static> = options.qp.clone();
    inner.keep(Member { shared: Arc::clone(&shared), number: 0, qp, task });
    shared.enter(0, inner);
    let guard = Guard { shared, id: Some(id), reason: CloseReason::Destroyed };
    tokio::spawn(until_gone(guard, file));
}

/// Ends the connection when the task ends for any reason, because no other task would notice that the peer is gone.
struct Guard {
    shared: Arc<Shared>,
    /// Taken when the guard is dropped.
    id: Option<ConnectionId>,
    reason: CloseReason,
}

impl Guard {
    /// Returns the reason if the peer is gone, and its farewell if there was one.
    fn end(&self) -> Option<(CloseReason, Option<Farewell>)> {
        let id = self.id.as_ref()?;
        let end = id.wait(Duration::ZERO).ok()?;
        tracing::debug!(peer = %self.shared.address(), %end, "a peer is gone");
        Some(cm::gone(&end, id.context()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A forked child owns none of this.
        if !self.shared.is_of_this_process() {
            return;
        }
        if self.reason == CloseReason::Destroyed {
            self.shared.send_farewells();
        }
        // No frames are sent, but connections that have changed are settled.
        drop(self.shared.take_due());
        self.shared.end(self.reason);
        let farewell = self.shared.final_farewell().unwrap_or(Farewell::PLAIN);
        // If this fails, the ID is dropped, which disconnects, too.
        let _ = self.id.take().map(|id| id.disconnect(&farewell.to_frame()));
    }
}

async fn until_gone(mut guard: Guard, file: AsyncFd<OwnedFd>) {
    let ends = async {
        loop {
            tokio::task::coop::consume_budget().await;
            // This fails if the runtime is shutting down.
            let Ok(ready) = file.readable().await else { return None };
            match guard.end() {
                Some(end) => return Some(end),
                None => look_again(ready).await,
            }
        }
    };
    let ended = tokio::select! {
        ended = ends => ended,
        () = until_ended(&guard.shared) => None,
        // The connection was dropped.
        () = guard.shared.left.notified() => None,
    };
    let Some((reason, farewell)) = ended else { return };
    if let Some(farewell) = farewell {
        let _ = guard.shared.receive(0, 0, Frame::Farewell(farewell));
    }
    guard.reason = reason;
}

/// Waits until this end has ended the connection.
async fn until_ended(shared: &Shared) {
    loop {
        drop(shared.take_due());
        if shared.has_ended() {
            return;
        }
        shared.out.to_send.notified().await;
    }
}
