//! The clients of a listener, from the first byte until the program has decided about them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::{ConnectError, Told};
use rdma_qp::QueuePairEndpoint;
use rustix::io::Errno;

use super::files::{EventFlags, Files};
use super::half_open::{Candidate, HalfOpen, MakeEnds, Step};
use super::room::{
    FIRST_BYTE, Occupant, in_order_to_go, in_order_to_yield, late, most_connected, most_half_open,
};
use super::until::Until;

/// The socket of a listener and its clients, which progress when they are served.
///
/// A client is half-open until both queue pairs are connected. One that is silent costs a file, and is in no other's
/// way: if there is no room for a newcomer, one goes (`in_order_to_go`). No call here waits for a client.
pub struct Clients<M: MakeEnds> {
    socket: TcpListener,
    address: SocketAddr,
    maker: M,
    /// How long a client has for its part.
    timeout: Duration,
    /// The socket, the streams of the clients by their keys, and what else the owner waits for.
    files: Files,
    ready: Vec<u64>,
    /// Whether clients are taken from the socket.
    is_taking: bool,
    /// When clients are taken again, after none could be.
    resumes: Option<Until>,
    /// Until when room counts as scarce, since a late client had to go.
    scarce: Option<Until>,
    next_key: u64,
    half_open: BTreeMap<u64, HalfOpen<M::End>>,
    connected: VecDeque<Candidate<M::End>>,
    /// How many were refused.
    pub refused: u64,
    /// How many of these were dropped while half-open, since others needed the room, or their time was over.
    dropped_half_open: u64,
    /// Which client was refused last, and why.
    last_refused: Option<String>,
    /// What the next call has to say.
    failure: Option<ConnectError>,
}

/// The key of the socket. Above it are those of the clients, below it those of the owner's files.
pub(crate) const SOCKET: u64 = 1 << 63;

/// How long the clients are served that have said something, though the limit of the call is over.
const PASS: Duration = Duration::from_millis(100);

/// Clients taken from the socket at a time, before those that have said something are served.
const TAKEN: usize = 64;

/// Clients that wait in the socket's backlog, if the kernel allows that many (`net.core.somaxconn`).
const BACKLOG: i32 = 1024;

/// No client is taken for this long after one could not be: the same error would come at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Room counts as scarce for this long after a late client had to go.
const SCARCE: Duration = Duration::from_secs(10);

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
                        resumes: None,
                        scarce: None,
                        next_key: SOCKET + 1,
                        half_open: BTreeMap::new(),
                        connected: VecDeque::new(),
                        refused: 0,
                        dropped_half_open: 0,
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

    /// How many clients were dropped while half-open, since others needed the room, or their time was over.
    pub const fn dropped_half_open(&self) -> u64 {
        self.dropped_half_open
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

    /// How long until the time of a client is over, or clients can be taken again; [`Duration::MAX`] if neither is to come.
    pub fn next_end(&self) -> Duration {
        let now = Instant::now();
        let over = self.half_open.values().map(|client| client.until);
        let over = over.chain(self.resumes).filter_map(|until| until.end()).min();
        let left = over.map(|end| end.saturating_duration_since(now));
        // If there is no room and none can go, one can when it is late.
        let is_full = self.is_full();
        let waited = self.half_open.values().map(|client| client.occupant().waited(now));
        let in_time = waited.filter(|waited| is_full && *waited < FIRST_BYTE);
        let late = in_time.map(|waited| FIRST_BYTE.saturating_sub(waited)).min();
        left.into_iter().chain(late).min().unwrap_or(Duration::MAX)
    }

    /// Takes no clients from the socket for a while.
    pub(crate) fn pause(&mut self) {
        self.resumes = Some(Until::after(PAUSE));
    }

    /// Takes clients from the socket again, since a file may be free.
    pub(crate) fn resume(&mut self) {
        self.resumes = None;
    }

    /// Waits for the socket if clients are taken from it now: not after one could not be, not if too many wait for the
    /// program, and not if there is no room and none can go.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the kernel refuses that.
    pub(crate) fn update_taking(&mut self) -> Result<(), ConnectError> {
        self.resumes = self.resumes.filter(|until| !until.is_over());
        let takes = self.resumes.is_none()
            && (self.connected.is_empty() || self.connected.len() < most_connected())
            && (!self.is_full() || self.victim().is_some());
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
        let served = self.update_taking().and_then(|()| {
            let was_ready = self.serve(Until::after(Duration::ZERO))?;
            self.update_taking()?;
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
        let before = self.connected.len();
        self.connected.retain_mut(|client| !ready.contains(&client.key) || client.check().is_ok());
        self.refused += (before - self.connected.len()) as u64;
        let pass = Until::after(PASS);
        for key in ready {
            // A device may take its time to connect a queue pair. The next clients still have their bytes in their
            // sockets.
            if pass.is_over() && until.is_over() {
                break;
            }
            if let Some(client) = self.half_open.remove(key) {
                self.step(client);
            }
        }
        self.expire();
        if ready.contains(&SOCKET) {
            self.take_clients();
        }
    }

    /// Lets a client progress.
    fn step(&mut self, client: HalfOpen<M::End>) {
        let step = match client.step() {
            Step::Hello(client, peer, told) => self.answer(client, *peer, told),
            step => step,
        };
        match step {
            Step::Open(client) | Step::Hello(client, ..) => {
                self.half_open.insert(client.key, client);
            }
            Step::Connected(client) => self.connected.push_back(client),
            Step::Refused(why) => self.refuse(why),
            Step::Failed(error) => {
                self.failure.get_or_insert(error.into());
            }
        }
    }

    /// Gives a client a queue pair. If there is none, another half-open client may have to go.
    fn answer(
        &mut self,
        client: HalfOpen<M::End>,
        peer: QueuePairEndpoint,
        told: Told,
    ) -> Step<M::End> {
        let addresses = client.stream_addresses();
        let mut prepared = self.maker.prepare(addresses);
        if prepared.is_err() {
            let with_queue_pair = self.half_open.values().filter(|other| other.has_queue_pair());
            let occupants = with_queue_pair.map(HalfOpen::occupant).collect();
            let order = in_order_to_yield(occupants, client.network(), Instant::now());
            if let Some(key) = self.first_to_go(&order) {
                self.evict(key);
                prepared = self.maker.prepare(addresses);
            }
        }
        match prepared {
            Ok(prepared) => client.answer(&self.maker, prepared, peer, told),
            Err(no_end) => client.turn_away(no_end),
        }
    }

    /// Ends the clients whose time is over. What one has sent in time is looked at first.
    fn expire(&mut self) {
        let now = Instant::now();
        let is_over = |client: &HalfOpen<_>| client.until.is_over_at(now) && !client.has_unread();
        let over = self.half_open.values().filter(|client| is_over(client));
        let over: Vec<_> = over.map(|client| client.key).collect();
        for client in over.iter().filter_map(|key| self.half_open.remove(key)) {
            self.dropped_half_open += 1;
            self.refused += 1;
            self.last_refused = Some(client.expire());
        }
    }

    /// The first of these that has sent nothing which the listener has not looked at.
    fn first_to_go(&self, order: &[Occupant]) -> Option<u64> {
        let waits = |occupant: &&Occupant| {
            self.half_open.get(&occupant.key).is_some_and(|client| !client.has_unread())
        };
        order.iter().find(waits).map(|occupant| occupant.key)
    }

    /// Drops a client for the sake of another one.
    fn evict(&mut self, key: u64) {
        let Some(client) = self.half_open.remove(&key) else { return };
        self.dropped_half_open += 1;
        let why = client.evict();
        tracing::debug!(server = %self.address, why, "half-open client dropped");
        self.refuse(why);
    }

    /// Counts a client that was refused, and keeps the reason.
    pub(crate) fn refuse(&mut self, why: String) {
        self.refused += 1;
        self.last_refused = Some(why);
    }

    /// Takes clients that are there. If there is no room for one, another one goes.
    fn take_clients(&mut self) {
        for taken in 0..TAKEN {
            let is_full = self.is_full();
            let victim = if is_full { self.victim() } else { None };
            if is_full && victim.is_none() {
                return;
            }
            if let Err(error) = self.take_client() {
                return self.not_taken(error, taken);
            }
            if let Some(key) = victim {
                self.make_room(key);
            }
        }
    }

    fn is_full(&self) -> bool {
        // An idle listener does not ask for the limit of files.
        !self.half_open.is_empty() && self.half_open.len() >= most_half_open()
    }

    /// The client that goes when there is no room, if one can.
    fn victim(&self) -> Option<u64> {
        let occupants = self.half_open.values().map(HalfOpen::occupant).collect();
        let is_scarce = self.scarce.is_some_and(|until| !until.is_over());
        self.first_to_go(&in_order_to_go(occupants, most_half_open(), is_scarce, Instant::now()))
    }

    fn make_room(&mut self, key: u64) {
        let client = self.half_open.get(&key).map(HalfOpen::occupant);
        if client.is_some_and(|client| client.is_late(Instant::now())) {
            self.scarce = Some(Until::after(SCARCE));
        }
        self.evict(key);
    }

    /// Takes one client that is there.
    fn take_client(&mut self) -> io::Result<()> {
        let (stream, address) = self.socket.accept()?;
        // Without it the client waits longer, no more.
        let _ = stream.set_nodelay(true);
        let key = self.next_key;
        self.next_key += 1;
        let added = self.files.add_stream(Arc::new(stream.into()), key, EventFlags::IN)?;
        self.half_open.insert(key, HalfOpen::new(key, added, address, self.timeout));
        Ok(())
    }

    /// The next client could not be taken, after some were.
    fn not_taken(&mut self, error: io::Error, taken: usize) {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE) if taken > 0 => {
                // To ask for a client that is not there needs a free file, too. If there is one, the socket is ready
                // again.
            }
            Some(Errno::MFILE | Errno::NFILE) if self.make_file() => {}
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
                self.pause();
            }
            // None is there, or it has gone, or cannot be reached; see `man 2 accept`.
            Some(_) => {}
        }
    }

    /// Drops a client that has kept its file for long enough, so that another one can have it. Returns true if it has.
    fn make_file(&mut self) -> bool {
        let occupants = self.half_open.values().map(HalfOpen::occupant).collect();
        let victim = self.first_to_go(&late(occupants, Instant::now()));
        victim.inspect(|&key| self.evict(key)).is_some()
    }

    fn failed(&self, source: io::Error) -> ConnectError {
        ConnectError::Io { tried: format!("taking clients at {}", self.address), source }
    }
}

fn listen(address: SocketAddr, files: &Files) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address)?;
    // The standard library has asked for a short backlog, and this changes it.
    rustix::net::listen(&socket, BACKLOG)?;
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
