//! The clients of a listener of rdma_cm, until they are connected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_cm::{
    Accepted, Connection, ConnectionId, ConnectionRequest, End, Error, Event, EventChannel,
    IdToken, Listener, Step,
};
use rdma_qp::{PreparedQueuePair, Qpn, QueuePair};

use super::{failed, not_listening, rejection, reply};
use crate::error::connect_error::ConnectError;
use crate::half_open::{MakeEnds, NoEnd};
use crate::room::{Network, Occupant, eviction_order, yield_order};
use crate::until::Until;

/// Creates this end's queue pair for each client of rdma_cm, which connects the queue pair itself.
pub trait MakeCmEnds: MakeEnds {
    /// The parts of a connection without its queue pair.
    type Rest;

    /// Separates a queue pair from the rest of its connection.
    fn split(prepared: Self::Prepared) -> (PreparedQueuePair, Self::Rest);

    /// Completes a connection with its queue pair, which is connected.
    ///
    /// # Errors
    /// Returns an error if the device refuses the rest.
    fn finish(rest: Self::Rest, queue_pair: QueuePair) -> Result<Self::Connected, rdma_qp::Error>;
}

/// A client that is connected.
#[derive(Debug)]
#[non_exhaustive]
pub struct CmClient<E> {
    /// This end of the connection.
    pub end: E,
    /// The connection in rdma_cm.
    pub id: ConnectionId,
    /// The address from which the client connected.
    pub address: SocketAddr,
    /// The client's user bytes.
    pub user_bytes: Box<[u8]>,
    /// The number of this end's queue pair.
    pub qpn: Qpn,
    /// The reason if the connection has ended before the driver took the client.
    pub ended: Option<End>,
}

impl<E> CmClient<E> {
    /// Returns the reason if the connection has ended, for a driver that receives only the events that it
    /// [wants](CmClients::wants).
    #[must_use]
    pub fn look_for_end(&self) -> Option<End> {
        self.ended.clone().or_else(|| self.id.wait(Duration::ZERO).ok())
    }
}

/// The clients of a listener. They make progress while the driver passes events to [`handle`](Self::handle).
///
/// Each request is accepted at once, and the client is connected when it has confirmed. No call waits. If too many
/// clients have not confirmed, the oldest is dropped.
pub struct CmClients<M: MakeCmEnds> {
    /// Dropped first, so that clients are notified before their queue pairs are destroyed.
    listener: Listener,
    events: EventChannel,
    maker: M,
    /// The time limit for a client's confirmation.
    limit: Duration,
    /// The private data for each client.
    reply: Vec<u8>,
    /// The requests that the program decides about.
    held: VecDeque<ConnectionRequest>,
    /// The clients that the program has taken and not decided about.
    undecided: BTreeSet<IdToken>,
    half_open: BTreeMap<IdToken, HalfOpen<M::Rest>>,
    connected: VecDeque<CmClient<M::Connected>>,
    refused: u64,
    dropped_half_open: u64,
    last_refused: Option<String>,
    failure: Option<ConnectError>,
}

/// The outcome of an event.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // drivers handle each
pub enum CmNews {
    /// Nothing that the driver has to handle.
    Nothing,
    /// A connection that was connected before has ended.
    Ended(IdToken, End),
}

/// A client that has not confirmed yet.
struct HalfOpen<R> {
    accepted: Accepted,
    rest: R,
    address: SocketAddr,
    user_bytes: Box<[u8]>,
    since: Instant,
}

/// The maximum number of clients that have not confirmed.
const MOST_HALF_OPEN: usize = 64;

/// The reason for a client if that many others have not confirmed.
const TOO_MANY: &str = "too many clients have not confirmed their connections: try again later";

impl<M: MakeCmEnds> CmClients<M> {
    /// Listens at the first of these addresses that belongs to this host. `user_bytes` are sent to each client.
    ///
    /// # Errors
    /// [`ConnectError::UserBytesTooLong`], or [`ConnectError::Io`] if the port is in use or no address is of this host.
    pub fn listen(
        maker: M,
        events: EventChannel,
        addresses: &[SocketAddr],
        limit: Duration,
        user_bytes: &[u8],
    ) -> Result<Self, ConnectError> {
        let reply = reply(user_bytes)?;
        let first = *addresses.first().ok_or(ConnectError::NoAddress)?;
        let listener =
            Listener::bind(&events, addresses).map_err(|error| not_listening(error, first))?;
        Ok(Self {
            listener,
            events,
            maker,
            limit,
            reply,
            held: VecDeque::new(),
            undecided: BTreeSet::new(),
            half_open: BTreeMap::new(),
            connected: VecDeque::new(),
            refused: 0,
            dropped_half_open: 0,
            last_refused: None,
            failure: None,
        })
    }

    /// Returns the address of the listener.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Returns the channel, whose file is readable when there are events.
    #[must_use]
    pub const fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Returns the value that creates queue pairs.
    #[must_use]
    pub const fn maker(&self) -> &M {
        &self.maker
    }

    /// Returns the time limit for a client's confirmation.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the number of clients that were refused.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the number of refused clients that had not confirmed in time.
    #[must_use]
    pub const fn dropped_half_open(&self) -> u64 {
        self.dropped_half_open
    }

    /// Returns the last refused client, with the reason.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.last_refused.as_deref()
    }

    /// Counts a refused client.
    pub fn refuse(&mut self, why: String) {
        self.refused += 1;
        tracing::debug!(%why, "a client was refused");
        self.last_refused = Some(why);
    }

    /// Removes and returns the client that has been connected longest, if there is one.
    pub fn take(&mut self) -> Option<CmClient<M::Connected>> {
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

    /// Returns the time until a client's limit expires, or [`Duration::MAX`].
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Duration {
        self.oldest().map_or(Duration::MAX, |(_, client)| self.until(client).left(now))
    }

    /// Returns the half-open client whose limit expires first. The order of the IDs differs from that of the requests.
    fn oldest(&self) -> Option<(IdToken, &HalfOpen<M::Rest>)> {
        let clients = self.half_open.iter().map(|(&id, client)| (id, client));
        clients.min_by_key(|(_, client)| client.since)
    }

    fn until(&self, client: &HalfOpen<M::Rest>) -> Until {
        Until::after(client.since, self.limit)
    }

    /// Returns true if a client that the driver has not taken has this queue pair.
    #[must_use]
    pub fn has(&self, qpn: Qpn) -> bool {
        self.half_open.values().any(|client| client.accepted.queue_pair().qpn() == qpn)
            || self.connected.iter().any(|client| client.qpn == qpn)
    }

    /// Returns true if events with this identity are to be passed to [`handle`](Self::handle). A driver that owns all
    /// connections of the channel can pass all events.
    #[must_use]
    pub fn wants(&self, id: IdToken) -> bool {
        id == self.listener.id()
            || self.half_open.contains_key(&id)
            || self.undecided.contains(&id)
            || self.connected.iter().any(|client| client.id.id() == id)
    }

    /// Returns the request in an event, for the program to decide.
    ///
    /// # Errors
    /// Returns another event unchanged.
    pub fn request(&self, event: Event) -> Result<ConnectionRequest, Event> {
        self.listener.request(event)
    }

    /// Returns the error of a wait that failed.
    #[must_use]
    pub fn failed(&self, error: Error) -> ConnectError {
        failed(error, || format!("waiting for clients at {}", self.address()))
    }

    /// Drops the clients that have not confirmed in time.
    pub fn expire(&mut self, now: Instant) {
        while let Some((id, client)) = self.oldest()
            && self.until(client).is_over(now)
        {
            let limit = self.limit;
            self.drop_half_open(id, &format!("it did not confirm the connection within {limit:?}"));
        }
    }

    /// Drops the first of the clients that have not confirmed, in the order that `order` returns. Returns false if the
    /// order is empty.
    fn make_room(&mut self, order: impl FnOnce(Vec<Occupant>) -> Vec<Occupant>) -> bool {
        let occupant = |(key, client): (u64, &HalfOpen<M::Rest>)| {
            let (network, since) = (Network::of(client.address.ip()), client.since);
            Occupant { key, network, since, is_mute: false }
        };
        let order = order((0..).zip(self.half_open.values()).map(occupant).collect());
        let chosen = order.first().and_then(|first| usize::try_from(first.key).ok());
        let chosen = chosen.and_then(|place| self.half_open.keys().nth(place).copied());
        let why = "it had not confirmed the connection, and had to make room for others";
        chosen.inspect(|&id| self.drop_half_open(id, why)).is_some()
    }

    fn drop_half_open(&mut self, id: IdToken, why: &str) {
        if let Some(client) = self.half_open.remove(&id) {
            self.dropped_half_open += 1;
            self.refuse(format!("{}: {why}", client.address));
        }
    }

    /// Handles an event like [`handle`](Self::handle), but holds a request for the program to decide.
    pub fn handle_or_hold(&mut self, event: Event, now: Instant) -> CmNews {
        match self.listener.request(event) {
            Ok(request) => self.held.push_back(request),
            Err(event) => return self.handle(event, now),
        }
        CmNews::Nothing
    }

    /// Removes and returns the first request that is held. Until the program [decides](Self::decide), the driver wants the
    /// client's events, so that they do not keep the channel readable.
    pub fn take_request(&mut self) -> Option<ConnectionRequest> {
        let request = self.held.pop_front()?;
        self.undecided.insert(request.id());
        Some(request)
    }

    /// Records that the program is about to accept or reject a client. From now on, it receives the client's events
    /// itself.
    pub fn decide(&mut self, id: IdToken) {
        self.undecided.remove(&id);
    }

    /// Returns true if a request is held.
    #[must_use]
    pub fn holds_requests(&self) -> bool {
        !self.held.is_empty()
    }

    /// Accepts the requests that are held. Returns true if there were any.
    pub fn accept_held(&mut self, now: Instant) -> bool {
        let held = std::mem::take(&mut self.held);
        let has_held = !held.is_empty();
        held.into_iter().for_each(|request| self.answer(request, now));
        has_held
    }

    /// Handles an event. Accepts a request at once.
    pub fn handle(&mut self, event: Event, now: Instant) -> CmNews {
        let id = event.id();
        let Some(client) = self.half_open.remove(&id) else {
            match self.listener.request(event) {
                Ok(request) => self.answer(request, now),
                Err(event) => return self.ended(&event),
            }
            return CmNews::Nothing;
        };
        let HalfOpen { accepted, rest, address, user_bytes, since } = client;
        match accepted.advance(event) {
            Step::Next(connection) => self.connected(connection, rest, (address, user_bytes)),
            Step::Same(accepted, _) => {
                let client = HalfOpen { accepted, rest, address, user_bytes, since };
                self.half_open.insert(id, client);
            }
            Step::Failed(error) => self.refuse(format!("{address}: {error}")),
            _ => {}
        }
        CmNews::Nothing
    }

    /// Handles the end of a connection, which the driver may not have taken yet.
    fn ended(&mut self, event: &Event) -> CmNews {
        let Some(end) = event.end().cloned() else { return CmNews::Nothing };
        let mut clients = self.connected.iter_mut();
        match clients.find(|client| client.id.id() == event.id()) {
            Some(client) => client.ended = Some(end),
            None => return CmNews::Ended(event.id(), end),
        }
        CmNews::Nothing
    }

    fn connected(
        &mut self,
        connection: Connection,
        rest: M::Rest,
        (address, user_bytes): (SocketAddr, Box<[u8]>),
    ) {
        let (queue_pair, id) = connection.into_parts();
        let qpn = queue_pair.qpn();
        match M::finish(rest, queue_pair) {
            Ok(end) => {
                let client = CmClient { end, id, address, user_bytes, qpn, ended: None };
                self.connected.push_back(client);
            }
            Err(error) => {
                self.refuse(format!("{address}: {error}"));
                self.failure = Some(error.into());
            }
        }
    }

    /// Accepts or rejects a request.
    fn answer(&mut self, request: ConnectionRequest, now: Instant) {
        let address = request.peer_address();
        let is_full = self.half_open.len() >= MOST_HALF_OPEN;
        if is_full && !self.make_room(|all| eviction_order(all, MOST_HALF_OPEN, true, now)) {
            reject(request, TOO_MANY, true);
            return self.refuse(format!("{address}: {TOO_MANY}"));
        }
        let mut prepared = self.maker.prepare(None);
        let network = Network::of(address.ip());
        if prepared.is_err() && self.make_room(|all| yield_order(all, network, now)) {
            prepared = self.maker.prepare(None);
        }
        let refused = match prepared {
            Ok((prepared, _)) => {
                let user_bytes = super::decode(request.private_data()).0.into();
                let (queue_pair, rest) = M::split(prepared);
                let accepting = request.prepare(queue_pair);
                match accepting.and_then(|accepting| accepting.accept(&self.reply)) {
                    Ok(accepted) => {
                        let id = accepted.id();
                        let client = HalfOpen { accepted, rest, address, user_bytes, since: now };
                        self.half_open.insert(id, client);
                        return;
                    }
                    Err(error) => error.to_string(),
                }
            }
            Err(NoEnd::Full(why)) => {
                reject(request, &why, true);
                why
            }
            Err(NoEnd::Failed(error) | NoEnd::Unfit(error, _)) => {
                reject(request, NO_QUEUE_PAIR, true);
                let why = error.to_string();
                self.failure = Some(error.into());
                why
            }
        };
        self.refuse(format!("{address}: {refused}"));
    }
}

/// The reason for a client if the server cannot create a queue pair.
pub const NO_QUEUE_PAIR: &str = "it cannot create another queue pair: try again later";

/// Rejects a client. A client that is gone does not need the reason.
pub fn reject(request: ConnectionRequest, why: &str, is_busy: bool) {
    let _ = request.reject(&rejection(why, is_busy));
}

impl<M: MakeCmEnds> fmt::Debug for CmClients<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half_open, connected) = (self.half_open.len(), self.connected.len());
        write!(
            f,
            "listener at {}, {half_open} half-open clients, {connected} connected, {} refused",
            self.address(),
            self.refused
        )
    }
}
