//! The clients of a listener, from the first byte until the program has decided about them.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::error::ConnectError;
use super::files::{EventFlags, Files};
use super::half_open::{Candidate, HalfOpen, MakeEnds, Step};
use super::until::Until;

/// The socket of a listener and its clients, which go forward when they are served.
pub struct Clients<M: MakeEnds> {
    socket: TcpListener,
    address: SocketAddr,
    maker: M,
    /// How long a client has for its part.
    timeout: Duration,
    /// The socket, the streams of the clients by their keys, and what else the owner waits for.
    files: Files,
    ready: Vec<u64>,
    /// Whether clients are taken from the socket: not if there are too many, or none can be taken for now.
    is_taking: bool,
    next_key: u64,
    half_open: Vec<HalfOpen<M::End>>,
    connected: VecDeque<Candidate<M::End>>,
    /// How many were refused.
    pub refused: u64,
    /// Which client was refused last, and why.
    last_refused: Option<String>,
    /// What the next call has to say.
    failure: Option<ConnectError>,
}

/// The most clients at a time that the program has not been given.
const MOST_CLIENTS: usize = 64;

/// The key of the socket. Above it are those of the clients, below it those of the owner's files.
pub(crate) const SOCKET: u64 = 1 << 63;

/// How long the clients are served that have said something, though the limit of the call is over.
const PASS: Duration = Duration::from_millis(100);

impl<M: MakeEnds> Clients<M> {
    /// Listens at the first of the addresses that can be listened at, and waits with these files.
    ///
    /// # Errors
    /// [`ConnectError::Io`], of the first address.
    pub fn listen(
        maker: M,
        timeout: Duration,
        addresses: &[SocketAddr],
        files: Files,
    ) -> Result<Self, ConnectError> {
        let mut failure = None;
        for &address in addresses {
            match listen(address, &files) {
                Ok((socket, address)) => {
                    return Ok(Self {
                        socket,
                        address,
                        maker,
                        timeout,
                        files,
                        ready: Vec::new(),
                        is_taking: true,
                        next_key: SOCKET + 1,
                        half_open: Vec::new(),
                        connected: VecDeque::new(),
                        refused: 0,
                        last_refused: None,
                        failure: None,
                    });
                }
                Err(source) => {
                    let tried = format!("listening at {address}");
                    failure.get_or_insert(ConnectError::Io { tried, source });
                }
            }
        }
        Err(failure.unwrap_or(ConnectError::NoAddress))
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) const fn maker(&self) -> &M {
        &self.maker
    }

    /// Which client was refused last, and why.
    pub fn last_refused(&self) -> Option<&str> {
        self.last_refused.as_deref()
    }

    /// A client that is connected and was not given away, if there is one.
    pub fn take(&mut self) -> Option<Candidate<M::End>> {
        self.connected.pop_front()
    }

    /// What is wrong here, and was not said yet.
    pub fn take_failure(&mut self) -> Option<ConnectError> {
        self.failure.take()
    }

    /// What is waited for: readable when something has happened.
    pub const fn files(&self) -> &Files {
        &self.files
    }

    /// Whether a client is connected, and waits to be taken, or something is wrong here.
    pub fn has_news(&self) -> bool {
        !self.connected.is_empty() || self.failure.is_some()
    }

    /// How long until the time of a client is over; [`Duration::MAX`] if there is none.
    pub fn next_end(&self) -> Duration {
        self.half_open.iter().map(|client| client.until.left()).min().unwrap_or(Duration::MAX)
    }

    /// Takes clients from the socket if there is room for them and they are `wanted`.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the kernel refuses that.
    pub(crate) fn set_taking(&mut self, wanted: bool) -> Result<(), ConnectError> {
        let has_room = self.half_open.len() + self.connected.len() < MOST_CLIENTS;
        let takes = has_room && wanted;
        if takes != self.is_taking {
            let flags = if takes { EventFlags::IN } else { EventFlags::empty() };
            let changed = self.files.change(&self.socket, SOCKET, flags);
            changed.map_err(|error| self.failed(error.into()))?;
            self.is_taking = takes;
        }
        Ok(())
    }

    /// Does what can be done without waiting, also takes clients. Whether a file was ready, so that another one may be.
    pub fn serve_now(&mut self) -> bool {
        // What is wrong with the socket would be said again and again. The clients that have begun go on.
        let served = self.set_taking(self.failure.is_none()).and_then(|()| {
            let was_ready = self.serve(Until::after(Duration::ZERO))?;
            self.set_taking(self.failure.is_none())?;
            Ok(was_ready)
        });
        served.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            false
        })
    }

    /// Waits until something has happened, and does what is to be done for it. Whether a file was ready.
    pub(crate) fn serve(&mut self, until: Until) -> Result<bool, ConnectError> {
        let wait = if self.has_news() { Duration::ZERO } else { until.left().min(self.next_end()) };
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.files.wait(wait, &mut ready);
        let served = waited.map_err(|error| self.failed(error.into()));
        if served.is_ok() {
            self.serve_ready(&ready, until);
        }
        let was_ready = !ready.is_empty();
        self.ready = ready;
        served.map(|()| was_ready)
    }

    /// Does what is to be done for the files of these keys, and for clients whose time is over.
    pub(crate) fn serve_ready(&mut self, ready: &[u64], until: Until) {
        let happened = |key| ready.contains(&key);
        let before = self.connected.len();
        self.connected.retain_mut(|client| !happened(client.key) || client.check().is_ok());
        self.refused += (before - self.connected.len()) as u64;
        let pass = Until::after(PASS);
        for client in std::mem::take(&mut self.half_open) {
            // A device may take its time to connect a queue pair. Who comes behind has its bytes in its socket still.
            if pass.is_over() && until.is_over() {
                self.half_open.push(client);
            } else {
                let happened = happened(client.key);
                self.step(client, happened);
            }
        }
        if happened(SOCKET) {
            self.take_client();
        }
    }

    /// Has a client go forward, or ends it if its time is over.
    fn step(&mut self, client: HalfOpen<M::End>, happened: bool) {
        let step = if happened { client.step(&self.maker) } else { Step::Open(client) };
        match step {
            Step::Open(client) if client.until.is_over() => {
                self.refuse(client.expire());
            }
            Step::Open(client) => self.half_open.push(client),
            Step::Connected(client) => self.connected.push_back(client),
            Step::Refused(why) => self.refuse(why),
            Step::Failed(error) => {
                self.failure.get_or_insert(error.into());
            }
        }
    }

    fn refuse(&mut self, why: String) {
        self.refused += 1;
        self.last_refused = Some(why);
    }

    /// Takes one client that is there. Only one: to ask for another one that is not there needs a free file, too.
    fn take_client(&mut self) {
        let error = match self.socket.accept() {
            Ok((stream, address)) => {
                // Without it the client waits longer, no more.
                let _ = stream.set_nodelay(true);
                let key = self.next_key;
                self.next_key += 1;
                match self.files.add_stream(Arc::new(stream.into()), key, EventFlags::IN) {
                    Ok(added) => {
                        self.half_open.push(HalfOpen::new(key, added, address, self.timeout));
                        return;
                    }
                    Err(error) => error.into(),
                }
            }
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            // It is about this socket or process, so the next call would say the same.
            Some(
                Errno::MFILE
                | Errno::NFILE
                | Errno::NOBUFS
                | Errno::NOMEM
                | Errno::NOSPC
                | Errno::BADF
                | Errno::INVAL
                | Errno::NOTSOCK,
            )
            | None => {
                let failure = self.failed(error);
                self.failure.get_or_insert(failure);
            }
            // A client that has gone, or cannot be reached, and is no longer there; see `man 2 accept`.
            Some(_) => {}
        }
    }

    fn failed(&self, source: io::Error) -> ConnectError {
        ConnectError::Io { tried: format!("taking clients at {}", self.address), source }
    }
}

fn listen(address: SocketAddr, files: &Files) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    files.add(&socket, SOCKET, EventFlags::IN)?;
    Ok((socket, address))
}

impl<M: MakeEnds> fmt::Debug for Clients<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, half_open, connected, .. } = self;
        let (begun, connected) = (half_open.len(), connected.len());
        write!(f, "at {address}, {begun} clients that have begun, {connected} that wait")
    }
}
