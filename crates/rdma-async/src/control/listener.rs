//! Listeners, whose clients become connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_channel::ConnectError;
use rdma_channel::parts::{Clients, Files};
use tokio::io::unix::AsyncFd;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::incoming::Incoming;
use super::maker::Maker;
use super::meet::blocking;
use super::options::ConnectionOptions;
use crate::connection::Connection;
use crate::driver::{Driver, file};

/// Listens for clients, which become connections: made by [`Driver::listen`].
///
/// A task of the runtime serves all clients until the program accepts them, whether or not it waits for one, so that a
/// bad client delays no other. As at a [`ChannelListener`](rdma_channel::ChannelListener), up to 256 clients are
/// half-open at a time; if one more comes, a silent one is dropped. Their queue pairs are created on tokio's blocking
/// threads, one of which has to be free, since a device may be slow to create them. A listener keeps its driver going.
/// Dropping the listener turns away the clients that were not accepted; the connections go on.
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

/// What the listener and its task share.
#[derive(Debug)]
pub(super) struct Served {
    state: Mutex<State>,
    driver: Driver,
    pub(super) options: ConnectionOptions,
    /// Told when a client can be taken, or something is wrong.
    news: Notify,
    /// Told when the program has taken one, or has heard what is wrong: then clients are taken again.
    taken: Notify,
}

/// What is under the lock.
#[derive(Debug)]
struct State {
    /// `None` while the task serves them, or if it has ended.
    clients: Option<Clients<Maker>>,
    has_ended: bool,
    /// How many have gone when they were accepted.
    gone: u64,
    /// What the clients say of those that were refused, when they were served last.
    refused: u64,
    dropped_half_open: u64,
    last_refused: Option<String>,
}

impl Driver {
    /// Listens at this address for clients, each of which becomes a connection with these options. Port 0 has the kernel
    /// choose one. If there are several addresses, it is the first that can be listened at.
    ///
    /// # Errors
    /// [`ConnectError::Io`], of the first address, or if there can be no more files; [`ConnectError::Resolve`],
    /// [`ConnectError::NoAddress`] and [`ConnectError::UserBytesTooLong`] as for [`connect`](Self::connect);
    /// [`ConnectError::Verbs`] if no connection can be made with these options.
    ///
    /// # Panics
    /// If this is not called within a runtime of tokio with I/O and time.
    pub async fn listen(
        &self,
        addr: impl ToSocketAddrs,
        options: impl Into<ConnectionOptions>,
    ) -> Result<Listener, ConnectError> {
        let options = options.into();
        options.check()?;
        // A runtime without time is found out here, and not by the task.
        drop(tokio::time::sleep(Duration::ZERO));
        self.check()?;
        let addresses = lookup_host(addr).await;
        let addresses: Vec<_> =
            addresses.map_err(|source| ConnectError::Resolve { source })?.collect();
        // What no client could be given is said now, and not to the first client.
        let maker = Maker { driver: self.clone(), qp: options.qp.clone() };
        let maker = blocking(move || {
            drop(maker.driver.prepare(maker.qp.clone())?);
            Ok(maker)
        });
        let timeout = options.rendezvous_timeout;
        let clients = Clients::listen(maker.await?, timeout, &addresses, Files::new()?)?;
        let address = clients.address();
        let files = file::readable(clients.files().as_fd()).map_err(|source| ConnectError::Io {
            tried: format!("waiting for clients at {address}"),
            source,
        })?;
        let state = State {
            clients: Some(clients),
            has_ended: false,
            gone: 0,
            refused: 0,
            dropped_half_open: 0,
            last_refused: None,
        };
        let shared = Arc::new(Served {
            state: Mutex::new(state),
            driver: self.clone(),
            options,
            news: Notify::new(),
            taken: Notify::new(),
        });
        let guard = Guard(Arc::clone(&shared));
        let task = tokio::spawn(async move { serve(&guard.0, &files).await }).abort_handle();
        Ok(Listener { shared, address, task })
    }
}

impl Listener {
    /// Where it listens. With the port that the kernel has chosen, if it was asked for port 0.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a client, and accepts it with the [`user_bytes`](ConnectionOptions::user_bytes) of the options. A client
    /// that has gone is no error: the next one is waited for.
    ///
    /// Dropped before it is ready, no client is lost.
    ///
    /// # Errors
    /// Those of [`incoming`](Self::incoming), and [`ConnectError::Io`] if the stream of a client cannot be kept.
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        loop {
            match self.incoming().await?.accept(&self.shared.options.user_bytes) {
                Err(ConnectError::Closed { .. } | ConnectError::Garbled { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits for a client that is connected, which can be [accepted](Incoming::accept) with an answer to what it said, or
    /// [rejected](Incoming::reject). Dropped before it is ready, no client is lost.
    ///
    /// # Errors
    /// Only errors of this end, not those of a client. The listener can be used again after any of them:
    /// [`ConnectError::Verbs`] if no queue pair could be made for a client, which was told so, and [`ConnectError::Io`]
    /// if no client can be accepted from the socket, mostly because too many files are open: the listener tries again
    /// after a second.
    pub async fn incoming(&self) -> Result<Incoming, ConnectError> {
        loop {
            // A wake-up that comes now is kept for it.
            let news = self.shared.news.notified();
            if let Some(outcome) = self.take() {
                // More may be there, for others who wait.
                self.shared.news.notify_one();
                return outcome;
            }
            news.await;
        }
    }

    fn take(&self) -> Option<Result<Incoming, ConnectError>> {
        let mut state = self.shared.state();
        if state.has_ended {
            let source = io::Error::other(
                "the task of the listener has ended, as with its runtime: listen anew",
            );
            let tried = format!("waiting for clients at {}", self.address);
            return Some(Err(ConnectError::Io { tried, source }));
        }
        // While they are served, the task says when it is done.
        let clients = state.clients.as_mut()?;
        let taken = match clients.take() {
            Some(client) => {
                client.leave();
                Some(Ok(Incoming { client, listener: Arc::clone(&self.shared) }))
            }
            None => clients.take_failure().map(Err),
        };
        drop(state);
        self.shared.taken.notify_one();
        taken
    }

    /// How many clients were refused so far since they were bad, or have gone before the program had decided. Those that
    /// the program has rejected do not count.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let state = self.shared.state();
        state.refused + state.gone
    }

    /// The number of clients that were dropped so far while half-open: others needed the room, or the
    /// [`rendezvous_timeout`](ConnectionOptions::rendezvous_timeout) was over. They are among those
    /// [refused](Self::refused).
    #[must_use]
    pub fn dropped_half_open(&self) -> u64 {
        self.shared.state().dropped_half_open
    }

    /// Which client was refused last, by its address, and why. `None` if none was.
    #[must_use]
    pub fn last_refused(&self) -> Option<String> {
        self.shared.state().last_refused.clone()
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

/// Ends the listener when its task ends, however it does.
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
        self.driver.context().check_process().is_ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client that was taken has gone.
    pub(super) fn note_gone(&self) {
        self.state().gone += 1;
    }

    /// The clients are back from being served. Whether there is news of them, and until when they can wait.
    fn put_back(&self, clients: Clients<Maker>) -> Option<(bool, Duration)> {
        let mut state = self.state();
        if state.has_ended {
            drop(state);
            drop(clients);
            return None;
        }
        (state.refused, state.dropped_half_open) = (clients.refused, clients.dropped_half_open());
        state.last_refused = clients.last_refused().map(str::to_owned);
        let clients = state.clients.insert(clients);
        Some((clients.has_news(), clients.next_end()))
    }

    /// Turns away who was not taken.
    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let clients = state.clients.take();
        drop(state);
        drop(clients);
        self.news.notify_waiters();
    }
}

/// Serves the clients as long as there is a listener.
async fn serve(shared: &Served, files: &AsyncFd<OwnedFd>) {
    loop {
        let Some(mut clients) = shared.state().clients.take() else { return };
        // A device may take its time to make a queue pair, and to connect it.
        let served = tokio::task::spawn_blocking(move || (clients.serve_now(), clients)).await;
        let Ok((was_ready, clients)) = served else { return };
        let Some((has_news, next_end)) = shared.put_back(clients) else { return };
        if has_news {
            shared.news.notify_one();
        }
        if !was_ready && let Err(error) = wait(shared, files, next_end).await {
            tracing::error!(%error, "a listener cannot wait for its clients");
            return;
        }
    }
}

/// Waits until a file may be ready, or somebody's time is over, or the program has taken a client.
async fn wait(shared: &Served, files: &AsyncFd<OwnedFd>, next_end: Duration) -> io::Result<()> {
    tokio::select! {
        ready = files.readable() => ready?.clear_ready(),
        () = tokio::time::sleep(next_end) => {}
        () = shared.taken.notified() => {}
    }
    Ok(())
}
