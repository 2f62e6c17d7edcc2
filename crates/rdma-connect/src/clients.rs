//! The clients of a listener, from their first byte until the program has accepted or rejected them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_qp::QueuePairEndpoint;
use rustix::io::Errno;

use crate::dial::StreamAddresses;
use crate::error::connect_error::ConnectError;
use crate::half_open::{Candidate, ClientStream, HalfOpen, Hello, NoEnd, Step};
use crate::room::{
    FIRST_BYTE, Occupant, eviction_order, late, most_connected, most_half_open, yield_order,
};
use crate::until::Until;

/// The clients of a listener. They make progress when their streams are ready.
///
/// A client is half-open until both queue pairs are connected. A silent client costs one file and delays no other
/// client: if a newcomer needs its place, the listener drops the silent client (`eviction_order`). No call here waits
/// for a client.
///
/// A driver accepts streams while [`takes`](Self::takes) returns true, passes each to [`admit`](Self::admit), and calls
/// [`step`](Self::step) when a stream is ready. For each [`Hello`] that `step` returns, the driver creates a queue pair
/// with [`MakeEnds::make`](crate::MakeEnds::make) and [`make_room`](Self::make_room), and passes the result to
/// [`answer`](Self::answer).
pub struct Clients<S: ClientStream, E> {
    address: SocketAddr,
    /// The time limit for a client's side of the rendezvous.
    limit: Duration,
    open_files: fn() -> Option<u64>,
    /// The time at which the listener accepts clients again after a failure to accept one.
    resumes: Option<Until>,
    /// The time until which room counts as scarce, because a late client was dropped.
    scarce: Option<Until>,
    next_key: u64,
    half_open: BTreeMap<u64, HalfOpen<S, E>>,
    connected: VecDeque<Candidate<S, E>>,
    /// The number of clients that were refused.
    pub refused: u64,
    /// The number of refused clients that were dropped while half-open, to make room or because their time limit
    /// expired.
    dropped_half_open: u64,
    /// The last refused client, with the reason.
    last_refused: Option<String>,
    failure: Option<ConnectError>,
}

/// The key of the first client. The driver may use smaller keys and [`u64::MAX`] itself.
pub const FIRST_KEY: u64 = 1 << 63;

/// The pause after a failure to accept a client, because the same error would recur at once.
const PAUSE: Duration = Duration::from_secs(1);

/// The time during which room counts as scarce after a late client was dropped.
const SCARCE: Duration = Duration::from_secs(10);

impl<S: ClientStream, E> Clients<S, E> {
    /// Creates an empty set of clients for a listener at this address. `limit` is the time limit for each client's side
    /// of the rendezvous. `open_files` returns the limit of open files, which bounds the number of half-open clients.
    #[must_use]
    pub const fn new(
        address: SocketAddr,
        limit: Duration,
        open_files: fn() -> Option<u64>,
    ) -> Self {
        Self {
            address,
            limit,
            open_files,
            resumes: None,
            scarce: None,
            next_key: FIRST_KEY,
            half_open: BTreeMap::new(),
            connected: VecDeque::new(),
            refused: 0,
            dropped_half_open: 0,
            last_refused: None,
            failure: None,
        }
    }

    /// Returns the address of the listener.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of clients that were dropped while half-open, to make room or because their time limit
    /// expired.
    #[must_use]
    pub const fn dropped_half_open(&self) -> u64 {
        self.dropped_half_open
    }

    /// Returns the last refused client, with the reason.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.last_refused.as_deref()
    }

    /// Removes and returns the client that has been connected longest, if there is one.
    pub fn take(&mut self) -> Option<Candidate<S, E>> {
        self.connected.pop_front()
    }

    /// Removes and returns the listener's own failure, if there is one.
    pub const fn take_failure(&mut self) -> Option<ConnectError> {
        self.failure.take()
    }

    /// Returns true if a connected client waits for the program, or the listener has failed.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.connected.is_empty() || self.failure.is_some()
    }

    /// Returns the streams of all clients, with their keys.
    pub fn streams(&self) -> impl Iterator<Item = (u64, &S)> {
        let half_open = self.half_open.values().map(|client| (client.key, &client.stream));
        let connected = self.connected.iter().map(|client| (client.key, &client.stream));
        half_open.chain(connected).filter_map(|(key, stream)| Some((key, stream.get()?)))
    }

    /// Returns the time until a client's limit expires, clients can be accepted again, or, if there is no room, a
    /// client becomes late. Returns [`Duration::MAX`] if none of these will happen.
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Duration {
        let ends = self.half_open.values().map(|client| client.until).chain(self.resumes);
        // If there is no room and no client can be dropped now, one can be dropped once it is late.
        let is_full = self.is_full();
        let waited = self.half_open.values().map(|client| client.occupant().waited(now));
        let in_time = waited.filter(|waited| is_full && *waited < FIRST_BYTE);
        let late = in_time.map(|waited| FIRST_BYTE.saturating_sub(waited));
        ends.map(|until| until.left(now)).chain(late).min().unwrap_or(Duration::MAX)
    }

    /// Stops accepting clients for a while.
    pub fn pause(&mut self, now: Instant) {
        self.resumes = Some(Until::after(now, PAUSE));
    }

    /// Accepts clients again, because a file may be free.
    pub const fn resume(&mut self) {
        self.resumes = None;
    }

    /// Returns true if a client can be accepted now. Returns false for a while after a failure to accept one. Also
    /// returns false if too many clients wait for the program, or if there is no room and no client can be dropped.
    pub fn takes(&mut self, now: Instant) -> bool {
        self.resumes = self.resumes.filter(|until| !until.is_over(now));
        self.resumes.is_none()
            && (self.connected.is_empty()
                || self.connected.len() < most_connected((self.open_files)()))
            && self.has_room(now)
    }

    /// Returns true if there is room for a client, or one can be dropped.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        !self.is_full() || self.victim(now).is_some()
    }

    /// Drops connected clients with these keys if they are gone or have sent data.
    pub fn check(&mut self, ready: &[u64]) {
        let before = self.connected.len();
        self.connected.retain_mut(|client| !ready.contains(&client.key) || client.check().is_ok());
        self.refused += (before - self.connected.len()) as u64;
    }

    /// Receives bytes from a half-open client. Returns the client if it needs a queue pair now.
    pub fn step(&mut self, key: u64) -> Option<Hello<S, E>> {
        match self.half_open.remove(&key)?.step() {
            Step::Hello(hello) => Some(hello),
            step => {
                self.note(step);
                None
            }
        }
    }

    /// Drops a half-open client that has a queue pair, so that the newcomer can have one. Returns false if no client
    /// can be dropped.
    pub fn make_room(&mut self, newcomer: &Hello<S, E>, now: Instant) -> bool {
        let with_queue_pair = self.half_open.values().filter(|other| other.has_queue_pair());
        let occupants = with_queue_pair.map(HalfOpen::occupant).collect();
        let order = yield_order(occupants, newcomer.client.network(), now);
        self.first_evictable(&order).inspect(|&key| self.evict(key, now)).is_some()
    }

    /// Sends a client the endpoint of its queue pair, or the reason why there is none.
    pub fn answer(
        &mut self,
        hello: Hello<S, E>,
        made: Result<(E, QueuePairEndpoint), NoEnd>,
        now: Instant,
    ) {
        self.note(hello.answer(made, now));
    }

    /// Rejects all clients.
    pub fn close(&mut self) {
        self.half_open.clear();
        self.connected.clear();
    }

    fn note(&mut self, step: Step<S, E>) {
        match step {
            Step::Open(client) | Step::Hello(Hello { client, .. }) => {
                self.half_open.insert(client.key, client);
            }
            Step::Connected(client) => self.connected.push_back(client),
            Step::Refused(why) => self.refuse(why),
            Step::Failed(error) => {
                self.failure.get_or_insert(error.into());
            }
        }
    }

    /// Ends the clients whose time limit has expired. A client with unread data is kept until the listener has received
    /// that data, because the client may have sent it in time.
    pub fn expire(&mut self, now: Instant) {
        let is_over = |client: &HalfOpen<_, _>| client.until.is_over(now) && !client.has_unread();
        let over = self.half_open.values().filter(|client| is_over(client));
        let over: Vec<_> = over.map(|client| client.key).collect();
        for key in over {
            let Some(client) = self.half_open.remove(&key) else { continue };
            self.dropped_half_open += 1;
            self.refuse(client.expire());
        }
    }

    /// Returns the first of these clients that has no unread data.
    fn first_evictable(&self, order: &[Occupant]) -> Option<u64> {
        let waits = |occupant: &&Occupant| {
            self.half_open.get(&occupant.key).is_some_and(|client| !client.has_unread())
        };
        order.iter().find(waits).map(|occupant| occupant.key)
    }

    /// Drops a client to make room for another one.
    fn evict(&mut self, key: u64, now: Instant) {
        let Some(client) = self.half_open.remove(&key) else { return };
        self.dropped_half_open += 1;
        let why = client.evict(now);
        tracing::debug!(server = %self.address, why, "half-open client dropped");
        self.refuse(why);
    }

    /// Counts a refused client, and keeps the reason.
    pub fn refuse(&mut self, why: String) {
        self.refused += 1;
        self.last_refused = Some(why);
    }

    fn is_full(&self) -> bool {
        // An idle listener does not query the limit of open files.
        !self.half_open.is_empty() && self.half_open.len() >= most_half_open((self.open_files)())
    }

    /// Returns the client to drop when there is no room, if one can be dropped.
    fn victim(&self, now: Instant) -> Option<u64> {
        let occupants = self.half_open.values().map(HalfOpen::occupant).collect();
        let is_scarce = self.scarce.is_some_and(|until| !until.is_over(now));
        let room = most_half_open((self.open_files)());
        self.first_evictable(&eviction_order(occupants, room, is_scarce, now))
    }

    /// Returns the key of the next client.
    #[must_use]
    pub const fn next_key(&self) -> u64 {
        self.next_key
    }

    /// Adds an accepted client. `from` contains its address and the addresses of its stream. If there is no room for
    /// the client, drops another one.
    pub fn admit(&mut self, stream: S, from: (SocketAddr, StreamAddresses), now: Instant) {
        if self.is_full()
            && let Some(victim) = self.victim(now)
        {
            let client = self.half_open.get(&victim).map(HalfOpen::occupant);
            if client.is_some_and(|client| client.is_late(now)) {
                self.scarce = Some(Until::after(now, SCARCE));
            }
            self.evict(victim, now);
        }
        let key = self.next_key;
        self.next_key += 1;
        self.half_open.insert(key, HalfOpen::new(key, stream, from, self.limit, now));
    }

    /// Records a failure to accept a client, after `admitted` clients were accepted.
    pub fn not_admitted(&mut self, error: io::Error, admitted: usize, now: Instant) {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE) if admitted > 0 => {
                // This need not be a failure: `accept` needs a free file even if no client is waiting. If one is
                // waiting, the socket becomes readable again.
            }
            Some(Errno::MFILE | Errno::NFILE) if self.free_file(now) => {}
            // The error concerns this socket or process, so the next call would fail in the same
            // way.
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
                self.fail(failure);
                self.pause(now);
            }
            // No client is waiting, or the client is gone or unreachable; see `man 2 accept`.
            Some(_) => {}
        }
    }

    /// Drops a client that has held its file long enough, to free the file for another client. Returns true if a client
    /// was dropped.
    fn free_file(&mut self, now: Instant) -> bool {
        let occupants = self.half_open.values().map(HalfOpen::occupant).collect();
        let victim = self.first_evictable(&late(occupants, now));
        victim.inspect(|&key| self.evict(key, now)).is_some()
    }

    /// Keeps a failure of the listener for [`take_failure`](Self::take_failure), unless there is
    /// one already.
    pub fn fail(&mut self, failure: ConnectError) {
        self.failure.get_or_insert(failure);
    }

    /// Returns the error of a listener that cannot accept clients.
    #[must_use]
    pub fn failed(&self, source: io::Error) -> ConnectError {
        ConnectError::Io { tried: format!("accepting clients at {}", self.address), source }
    }
}

impl<S: ClientStream, E> fmt::Debug for Clients<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, half_open, connected, .. } = self;
        let (begun, connected) = (half_open.len(), connected.len());
        write!(f, "at {address}, {begun} clients that have begun, {connected} that wait")
    }
}

/// Listens on the first of these addresses that is usable.
///
/// # Errors
/// If no address is usable, [`ConnectError::Io`] for the first one. [`ConnectError::NoAddress`] if there are no
/// addresses.
pub fn listen_at_first<T>(
    addresses: &[SocketAddr],
    mut listen: impl FnMut(SocketAddr) -> io::Result<T>,
) -> Result<T, ConnectError> {
    let mut failure = None;
    for &address in addresses {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            Err(source) => {
                let tried = format!("listening at {address}");
                failure.get_or_insert(ConnectError::Io { tried, source });
            }
        }
    }
    Err(failure.unwrap_or(ConnectError::NoAddress))
}
