//! Listeners, which turn clients into connections.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rdma_connect::{Clients, ConnectError, Hello, MakeEnds};
use tokio::net::{TcpListener, ToSocketAddrs, lookup_host};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

use super::incoming::Incoming;
use super::maker::Maker;
use super::negotiate::blocking;
use super::options::ConnectionOptions;
use super::socket::{ClientSocket, listen, open_files, poll_accept};
use crate::connection::Connection;
use crate::driver::Driver;
use crate::sync::now;

/// Listens for clients and turns them into connections. Created by [`Driver::listen`].
///
/// A task of the runtime serves all clients until the program accepts them, even while the program does not wait for
/// one. This way, a bad client does not delay the others. As with a `ChannelListener`, up to 256 clients can be
/// half-open at a time; when another one arrives, a silent client is dropped. Queue pairs are created on tokio's
/// blocking threads, because a device may be slow to create them; one of these threads has to be free.
///
/// A listener keeps its driver running. Dropping the listener turns away the clients that have not been accepted;
/// accepted connections continue.
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
/// let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
/// let address = listener.local_addr();
///
/// // This could be another process, or another machine.
/// let client = tokio::spawn({
///     let (driver, pool) = (driver.clone(), BufferPool::new(&pd));
///     async move {
///         let (connection, _) = driver.connect(address, options).await?;
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
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Served>,
    address: SocketAddr,
    task: AbortHandle,
}

/// State shared by the listener and its task.
#[derive(Debug)]
pub(super) struct Served {
    state: Mutex<ListenerState>,
    maker: Maker,
    pub(super) options: ConnectionOptions,
    /// Notified when a client can be accepted, or the listener has failed.
    ready: Notify,
    /// Notified when the program takes a client or the failure. The task then accepts clients again.
    taken: Notify,
}

/// The clients of a listener.
#[derive(Debug)]
struct ListenerState {
    clients: Clients<ClientSocket, Connection>,
    has_ended: bool,
}

impl Driver {
    /// Listens for clients at this address, and turns each into a connection with these options. For port 0, the kernel
    /// chooses the port. If there are several addresses, the listener uses the first one that works.
    ///
    /// # Errors
    /// [`ConnectError::Io`] with the failure at the first address if none works, or if the driver has ended;
    /// [`ConnectError::Resolve`], [`ConnectError::NoAddress`] and [`ConnectError::UserBytesTooLong`] as in
    /// [`connect`](Self::connect); [`ConnectError::Verbs`] if no connection can be made with these options.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    #[doc(alias("rdma_cm", "rdma_listen"))]
    pub async fn listen(
        &self,
        addr: impl ToSocketAddrs,
        options: impl Into<ConnectionOptions>,
    ) -> Result<Listener, ConnectError> {
        let device = self.context().device().name();
        let span = tracing::debug_span!("listen", device, address = Empty);
        self.listen_in_span(addr, options.into()).instrument(span).await
    }

    async fn listen_in_span(
        &self,
        addr: impl ToSocketAddrs,
        options: ConnectionOptions,
    ) -> Result<Listener, ConnectError> {
        options.check()?;
        // Panics here in a runtime without time, rather than in the task.
        drop(tokio::time::sleep(Duration::ZERO));
        self.check()?;
        let addresses = lookup_host(addr).await;
        let addresses: Vec<_> =
            addresses.map_err(|source| ConnectError::Resolve { source })?.collect();
        // Checks here that a queue pair can have these options, rather than when the first client connects.
        let maker = Maker { driver: self.clone(), qp: options.qp.clone() };
        let maker = blocking(move || {
            drop(maker.driver.prepare(maker.qp.clone())?);
            Ok(maker)
        })
        .await?;
        let (socket, address) = listen(&addresses)?;
        Span::current().record("address", display(address));
        let clients = Clients::new(address, options.rendezvous_timeout, open_files);
        let shared = Arc::new(Served {
            state: Mutex::new(ListenerState { clients, has_ended: false }),
            maker,
            options,
            ready: Notify::new(),
            taken: Notify::new(),
        });
        let guard = Guard(Arc::clone(&shared));
        let task = tokio::spawn(async move { serve(&guard.0, &socket).await }).abort_handle();
        Ok(Listener { shared, address, task })
    }
}

impl Listener {
    /// Returns the address at which the listener listens, with the port that the kernel chose for port 0.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a client, and accepts it with the [`user_bytes`](ConnectionOptions::user_bytes) of the options. If a
    /// client is already gone, waits for the next one.
    ///
    /// Dropping the future early loses no client.
    ///
    /// # Errors
    /// Same errors as [`incoming`](Self::incoming), and [`ConnectError::Io`] if the runtime cannot watch a client's
    /// stream.
    #[doc(alias = "rdma_accept")]
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        loop {
            match self.incoming().await?.accept(&self.shared.options.user_bytes) {
                Err(ConnectError::Closed { .. } | ConnectError::Garbled { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits for a connected client, which the program then [accepts](Incoming::accept) with an answer or
    /// [rejects](Incoming::reject). Dropping the future early loses no client.
    ///
    /// # Errors
    /// Only errors of this end, not errors of a client. The listener can be used again, unless its task has ended:
    ///
    /// - [`ConnectError::Verbs`] if no queue pair could be created for a client, which is sent the reason;
    /// - [`ConnectError::Io`] if the socket cannot accept a client, usually because too many files are open. The
    ///   listener tries again after a second;
    /// - [`ConnectError::Io`] if the listener's task has ended, for example with its runtime. Listen again.
    pub async fn incoming(&self) -> Result<Incoming, ConnectError> {
        loop {
            // The wait does not miss a notification that arrives between the check and the wait.
            let ready = self.shared.ready.notified();
            if let Some(outcome) = self.take() {
                // More may be left for other waiters.
                self.shared.ready.notify_one();
                return outcome;
            }
            ready.await;
        }
    }

    /// Returns true if the listener's task has ended, so that no further client connects.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.state().has_ended
    }

    fn take(&self) -> Option<Result<Incoming, ConnectError>> {
        let mut state = self.shared.state();
        if state.has_ended {
            let source = io::Error::other(
                "the listener's task has ended, for example with its runtime: listen again",
            );
            let tried = format!("waiting for clients at {}", self.address);
            return Some(Err(ConnectError::Io { tried, source }));
        }
        let taken = match state.clients.take() {
            Some(client) => Ok(Incoming { client, listener: Arc::clone(&self.shared) }),
            None => Err(state.clients.take_failure()?),
        };
        drop(state);
        self.shared.taken.notify_one();
        Some(taken)
    }

    /// Returns the number of clients that the listener refused, or that disconnected before the program decided.
    /// Clients that the program rejected do not count.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.state().clients.refused
    }

    /// Returns the number of clients that were dropped while half-open, to make room for others or because the
    /// [`rendezvous_timeout`](ConnectionOptions::rendezvous_timeout) had expired. They are included in
    /// [`refused`](Self::refused).
    #[must_use]
    pub fn dropped_half_open(&self) -> u64 {
        self.shared.state().clients.dropped_half_open()
    }

    /// Returns the address of the last refused client, with the reason, or `None` if none was refused.
    #[must_use]
    pub fn last_refused(&self) -> Option<String> {
        self.shared.state().clients.last_refused().map(str::to_owned)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child has neither the clients nor the runtime.
        if self.shared.is_of_this_process() {
            self.task.abort();
            self.shared.end();
        }
    }
}

/// Ends the listener when its task ends for any reason.
struct Guard(Arc<Served>);

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.is_of_this_process() {
            self.0.end();
        }
    }
}

impl Served {
    fn is_of_this_process(&self) -> bool {
        self.maker.driver.context().check_process().is_ok()
    }

    fn state(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a client that had already left when the program accepted it.
    pub(super) fn note_gone(&self) {
        self.state().clients.refused += 1;
    }

    /// Ready when clients have been accepted or have sent something. Returns the keys of those that have sent
    /// something.
    fn poll_ready(&self, socket: &TcpListener, cx: &mut Context<'_>) -> Poll<Vec<u64>> {
        let clients = &mut self.state().clients;
        let ready = clients.streams().filter(|(_, stream)| stream.is_ready(cx));
        let ready: Vec<_> = ready.map(|(key, _)| key).collect();
        let accepted = poll_accept(clients, socket, cx);
        if ready.is_empty() && accepted.is_pending() { Poll::Pending } else { Poll::Ready(ready) }
    }

    /// Receives what clients have sent, and drops clients that have timed out. Returns the clients that now need a
    /// queue pair.
    fn step(&self, ready: &[u64]) -> Vec<Hello<ClientSocket, Connection>> {
        let clients = &mut self.state().clients;
        clients.check(ready);
        let hellos = ready.iter().filter_map(|&key| clients.step(key)).collect();
        clients.expire(now());
        hellos
    }

    /// Creates a queue pair for a client. This may take long.
    fn answer(&self, hello: Hello<ClientSocket, Connection>) {
        let make_room = || self.state().clients.make_room(&hello, now());
        let make = || self.maker.make(hello.stream_addresses(), hello.endpoint(), make_room);
        let made = hello.span().in_scope(make);
        let mut state = self.state();
        if !state.has_ended {
            state.clients.answer(hello, made, now());
        }
    }

    /// Wakes a program that waits in `accept`, if there is a client or an error for it.
    fn notify_ready(&self) {
        if self.state().clients.has_news() {
            self.ready.notify_one();
        }
    }

    /// Turns away the clients that have not been accepted.
    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        state.clients.close();
        drop(state);
        self.ready.notify_waiters();
    }
}

/// Serves the clients until the listener is dropped.
async fn serve(shared: &Arc<Served>, socket: &TcpListener) {
    loop {
        // A steady flow of clients must not starve other tasks.
        tokio::task::coop::consume_budget().await;
        let next_end = shared.state().clients.next_end(now());
        // There may be more streams than tokio's budget allows a task to poll in one turn.
        let ready = tokio::task::unconstrained(poll_fn(|cx| shared.poll_ready(socket, cx)));
        let ready = tokio::select! {
            ready = ready => ready,
            () = tokio::time::sleep(next_end) => Vec::new(),
            () = shared.taken.notified() => Vec::new(),
        };
        for hello in shared.step(&ready) {
            let shared = Arc::clone(shared);
            if tokio::task::spawn_blocking(move || shared.answer(hello)).await.is_err() {
                return;
            }
        }
        shared.notify_ready();
    }
}
