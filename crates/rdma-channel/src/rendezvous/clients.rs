//! The socket of a listener, and the streams of its clients.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::{Clients, ConnectError, MakeEnds, Until, listen_at_first, stream_addresses};
use rustix::process::{Resource, getrlimit};

use super::files::{Added, EventFlags, Files};

/// A listener's socket and its clients. The clients make progress only when they are served. No call here waits for one
/// particular client.
pub(crate) struct Listening<M: MakeEnds> {
    socket: TcpListener,
    maker: M,
    /// The socket, the streams of the clients by their keys, and other files that the owner waits for.
    files: Files,
    ready: Vec<u64>,
    /// Whether the socket is currently polled.
    is_taking: bool,
    clients: Clients<Added, M::Connected>,
}

/// The key of the socket.
const SOCKET: u64 = u64::MAX;

/// The minimum time for serving clients that have sent something, even if the time limit of the call has expired.
const PASS: Duration = Duration::from_millis(100);

/// The maximum number of clients to accept from the socket before clients that have sent something are served.
const TAKEN: usize = 64;

/// The size of the socket's backlog, if the kernel allows it (`net.core.somaxconn`).
const BACKLOG: i32 = 1024;

impl<M: MakeEnds> Listening<M> {
    /// Listens on the first usable address, and uses `files` to wait.
    ///
    /// # Errors
    /// [`ConnectError::Io`] for the first address, if no address is usable.
    pub(crate) fn new(
        maker: M,
        timeout: Duration,
        addresses: &[SocketAddr],
        files: Files,
    ) -> Result<Self, ConnectError> {
        let (socket, address) = listen_at_first(addresses, |address| listen(address, &files))?;
        let open_files = || getrlimit(Resource::Nofile).current;
        let clients = Clients::new(address, timeout, open_files);
        Ok(Self { socket, maker, files, ready: Vec::new(), is_taking: true, clients })
    }

    pub(crate) const fn maker(&self) -> &M {
        &self.maker
    }

    /// Adds the socket to the polled files or removes it, depending on whether clients can be accepted now.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the kernel refuses the change.
    pub(crate) fn update_taking(&mut self) -> Result<(), ConnectError> {
        let takes = self.clients.takes(Instant::now());
        if takes != self.is_taking {
            let flags = if takes { EventFlags::IN } else { EventFlags::empty() };
            let changed = self.files.change(&self.socket, SOCKET, flags);
            changed.map_err(|error| self.failed(error.into()))?;
            self.is_taking = takes;
        }
        Ok(())
    }

    /// Waits until something happens, and handles it.
    pub(crate) fn serve(&mut self, until: Until) -> Result<(), ConnectError> {
        let now = Instant::now();
        let wait = match self.has_news() {
            true => Duration::ZERO,
            false => until.left(now).min(self.next_end(now)),
        };
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.files.wait(wait, &mut ready);
        let served = waited.map_err(|error| self.failed(error.into()));
        if served.is_ok() {
            self.serve_ready(&ready, until);
        }
        self.ready = ready;
        served
    }

    /// Handles the files with these keys, and the clients whose time limit has expired.
    pub(crate) fn serve_ready(&mut self, ready: &[u64], until: Until) {
        self.clients.check(ready);
        let pass = Until::after(Instant::now(), PASS);
        for &key in ready {
            // A device may take long to connect a queue pair. After the time limit, the remaining clients are left to
            // the next call, and their bytes stay in their sockets.
            let now = Instant::now();
            if pass.is_over(now) && until.is_over(now) {
                break;
            }
            if let Some(hello) = self.clients.step(key) {
                let make_room = || self.clients.make_room(&hello, now);
                let maker = &self.maker;
                let make = || maker.make(hello.stream_addresses(), hello.endpoint(), make_room);
                let made = hello.span().in_scope(make);
                self.clients.answer(hello, made, Instant::now());
            }
        }
        self.clients.expire(Instant::now());
        if ready.contains(&SOCKET) {
            self.take_clients();
        }
    }

    /// Accepts waiting clients, at most `TAKEN`. If there is no room for one of them, another client is dropped. Stops
    /// if none can be dropped.
    fn take_clients(&mut self) {
        for taken in 0..TAKEN {
            let now = Instant::now();
            if !self.clients.has_room(now) {
                return;
            }
            if let Err(error) = self.take_client(now) {
                return self.clients.not_admitted(error, taken, now);
            }
        }
    }

    /// Accepts one waiting client.
    fn take_client(&mut self, now: Instant) -> io::Result<()> {
        let (stream, address) = self.socket.accept()?;
        // If this fails, the client only waits longer.
        let _ = stream.set_nodelay(true);
        let addresses = stream_addresses(stream.local_addr(), address);
        let key = self.clients.next_key();
        let added = self.files.add_stream(Arc::new(stream.into()), key, EventFlags::IN)?;
        self.clients.admit(added, (address, addresses), now);
        Ok(())
    }
}

fn listen(address: SocketAddr, files: &Files) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address)?;
    // The standard library requests a short backlog. This call enlarges it.
    rustix::net::listen(&socket, BACKLOG)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    files.add(&socket, SOCKET, EventFlags::IN)?;
    Ok((socket, address))
}

impl<M: MakeEnds> Deref for Listening<M> {
    type Target = Clients<Added, M::Connected>;

    fn deref(&self) -> &Self::Target {
        &self.clients
    }
}

impl<M: MakeEnds> DerefMut for Listening<M> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.clients
    }
}

impl<M: MakeEnds> fmt::Debug for Listening<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clients.fmt(f)
    }
}
