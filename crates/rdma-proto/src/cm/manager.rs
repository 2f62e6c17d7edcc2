//! The communication manager: the calls of the program.

use alloc::collections::BTreeSet;

use rdma_types::{Guid, Qpn};

use super::address::{Address, CommId};
use super::connection::{Connection, State, Timing};
use super::counters::Counters;
use super::error::Error;
use super::event::Transmit;
use super::service::ServiceId;
use super::table::Table;
use super::wire::{
    Answer, Dreq, Mad, Message, Offer, Query, Reason, Rej, Rejection, Rep, Req, Resolution, Rtu,
    SidrRep, SidrReq, Subject, Timeout,
};
use crate::counters::count;
use crate::time::Time;

/// The settings of a [`Manager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The GUID of the adapter, which is in each REQ and REP.
    pub ca_guid: Guid,
    /// The upper 12 bits of all communication IDs. The upper 4 bits of the slot are ignored.
    pub slot: u16,
    /// A random number, from which the lower 20 bits of the communication IDs are derived. So the
    /// IDs of an earlier manager with the same slot are unlikely to be reused.
    pub secret: u32,
    /// The greatest number of connections and queries, including those in TimeWait. It is 65,536 by
    /// default, and never more than the 20 bits of an ID allow.
    pub max_connections: u32,
    /// The longest time that the manager waits for an answer, or keeps a connection in TimeWait.
    /// Longer times in a peer's messages are reduced to it. It is 69 s by default (code 24).
    pub longest_timeout: Timeout,
    /// The time within which the program is expected to decide about a REQ or REP. The manager
    /// reports it to peers that repeat theirs (MRA). It is 69 s by default, as in Linux.
    pub service_timeout: Timeout,
}

impl Settings {
    /// Returns the default settings of an adapter.
    #[must_use]
    pub fn new(ca_guid: Guid, slot: u16, secret: u32) -> Self {
        let longest_timeout = Timeout::from_code(24).unwrap_or(Timeout::LONGEST);
        Self {
            ca_guid,
            slot,
            secret,
            max_connections: 65_536,
            longest_timeout,
            service_timeout: longest_timeout,
        }
    }
}

/// The communication manager of one port. See the [module's documentation](super) for an example.
#[derive(Debug)]
pub struct Manager {
    pub(super) settings: Settings,
    pub(super) table: Table,
    listeners: BTreeSet<ServiceId>,
    pub(super) counters: Counters,
}

/// The transaction IDs of the messages that begin an exchange, beside the communication ID.
#[derive(Clone, Copy)]
enum Exchange {
    Connect = 0,
    Disconnect = 1,
    Query = 2,
}

const fn tid(id: CommId, exchange: Exchange) -> u64 {
    (id.get() as u64) << 32 | exchange as u64
}

impl Manager {
    /// The greatest number of half-open connections and unanswered queries of a listener.
    pub const MAX_HALF_OPEN: u32 = 128;

    /// Creates a manager without listeners and connections.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            settings: *settings,
            table: Table::new(settings.slot, settings.secret, settings.max_connections),
            listeners: BTreeSet::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of connections and queries, including those in TimeWait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if there are no connections and queries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time at which [`expire`](Self::expire) must be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.table.first().map(|(deadline, _)| deadline)
    }

    /// Accepts requests and queries for a service from now on. A service of the TCP port space
    /// receives only requests for connections, and one of the UDP port space only queries.
    ///
    /// # Errors
    ///
    /// Returns [`Error::ServiceInUse`].
    pub fn listen(&mut self, service_id: ServiceId) -> Result<(), Error> {
        let new = self.listeners.insert(service_id);
        if new { Ok(()) } else { Err(Error::ServiceInUse(service_id)) }
    }

    /// Rejects requests and queries for a service from now on. Earlier ones are unaffected: the
    /// program still answers them. Returns false if the service had no listener.
    pub fn stop_listening(&mut self, service_id: ServiceId) -> bool {
        self.listeners.remove(&service_id)
    }

    pub(super) fn is_listening(&self, service_id: ServiceId) -> bool {
        self.listeners.contains(&service_id)
    }

    /// Requests a connection. The event [`Replied`](super::Event::Replied) or
    /// [`Ended`](super::Event::Ended) follows.
    ///
    /// The offer's primary path must begin at the address from which the caller sends MADs.
    /// Otherwise, a peer that checks the source drops the request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::QueuePairInUse`], [`Error::TooManyConnections`] or [`Error::TooLong`].
    pub fn connect(
        &mut self,
        now: Time,
        to: Address,
        offer: &Offer<'_>,
    ) -> Result<(CommId, Transmit), Error> {
        self.check_unused(offer.qpn)?;
        let local_id = self.new_id()?;
        let req = Req { local_id, ca_guid: self.settings.ca_guid, offer: *offer };
        let tid = tid(local_id, Exchange::Connect);
        let message = Mad { tid, message: Message::Req(req) }.emit()?;
        let timing = self.timing(offer, offer.remote_response_timeout);
        let mut connection = Connection::new(State::ReqSent, to, offer.service_id, timing);
        connection.tid = tid;
        connection.is_active = true;
        connection.local_qpn = Some(offer.qpn);
        let transmit = connection.send(now, State::ReqSent, message);
        self.table.add(local_id, connection);
        Ok((local_id, self.sent(transmit)))
    }

    /// Accepts a request. The event [`Established`](super::Event::Established) or
    /// [`Ended`](super::Event::Ended) follows. The queue pair must be able to receive before the
    /// REP is sent.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unknown`], [`Error::State`], [`Error::QueuePairInUse`] or
    /// [`Error::TooLong`].
    pub fn accept(
        &mut self,
        now: Time,
        id: CommId,
        answer: &Answer<'_>,
    ) -> Result<Transmit, Error> {
        let connection = self.in_state(id, &[State::ReqReceived])?;
        let rep = Rep {
            local_id: id,
            remote_id: connection.remote_id.unwrap_or_default(),
            ca_guid: self.settings.ca_guid,
            failover: connection.failover,
            answer: *answer,
        };
        let message = Mad { tid: connection.tid, message: Message::Rep(rep) }.emit()?;
        self.check_unused(answer.qpn)?;
        self.changed(id, |connection| {
            connection.local_qpn = Some(answer.qpn);
            connection.send(now, State::RepSent, message)
        })
    }

    /// Confirms a reply, with at most 224 bytes of private data: this end can send. The connection
    /// is now established.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unknown`], [`Error::State`] or [`Error::TooLong`].
    pub fn ready(&mut self, id: CommId, private_data: &[u8]) -> Result<Transmit, Error> {
        let connection = self.in_state(id, &[State::RepReceived])?;
        let remote_id = connection.remote_id.unwrap_or_default();
        let rtu = Rtu { local_id: id, remote_id, private_data };
        let message = Mad { tid: connection.tid, message: Message::Rtu(rtu) }.emit()?;
        self.changed(id, |connection| {
            connection.stay(State::Established);
            connection.message = message;
            connection.transmit()
        })
    }

    /// Establishes an accepted connection, because its queue pair received a packet before the RTU
    /// arrived. No event follows.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unknown`] or [`Error::State`].
    #[doc(alias = "rdma_notify")]
    pub fn communication_established(&mut self, id: CommId) -> Result<(), Error> {
        self.in_state(id, &[State::RepSent])?;
        let changed = self.table.change(id, |connection| connection.stay(State::Established));
        changed.ok_or(Error::Unknown(id))
    }

    /// Rejects a request or a reply, or cancels an attempt. The REJ that cancels an unanswered REQ
    /// always has the reason [`Reason::TIMEOUT`]. The additional information of this reason is
    /// always the adapter's GUID.
    ///
    /// No [`Ended`](super::Event::Ended) follows. After a REP was sent or received, the connection
    /// enters TimeWait, and [`Released`](super::Event::Released) follows. Otherwise, the ID and the
    /// queue pair are free at once.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unknown`], [`Error::State`] or [`Error::TooLong`].
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        rejection: &Rejection<'_>,
    ) -> Result<Transmit, Error> {
        const STATES: [State; 4] =
            [State::ReqSent, State::ReqReceived, State::RepSent, State::RepReceived];
        let connection = self.in_state(id, &STATES)?;
        let subject = match connection.state {
            State::ReqReceived => Subject::Req,
            State::RepReceived => Subject::Rep,
            _ => Subject::Other,
        };
        let guid = self.settings.ca_guid.to_bytes();
        let rejection = if connection.state == State::ReqSent || rejection.reason == Reason::TIMEOUT
        {
            Rejection { reason: Reason::TIMEOUT, info: &guid, ..*rejection }
        } else {
            *rejection
        };
        let remote_id = connection.remote_id.unwrap_or_default();
        let rej = Rej { local_id: id, remote_id, subject, rejection };
        let mad = Mad { tid: connection.tid, message: Message::Rej(rej) }.emit()?;
        let transmit = Transmit { to: connection.peer, mad };
        if matches!(connection.state, State::RepSent | State::RepReceived) {
            self.table.change(id, |connection| connection.enter_time_wait(now));
        } else {
            self.table.remove(id);
        }
        count(&mut self.counters.rejects);
        Ok(self.sent(transmit))
    }

    /// Ends an established connection, with at most 220 bytes of private data. The event
    /// [`Ended`](super::Event::Ended) follows. A connection that is not established ends by
    /// [`reject`](Self::reject).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unknown`], [`Error::State`] or [`Error::TooLong`]. [`Error::State`] also means
    /// that the manager is ending the connection already, because its peer has forgotten it.
    pub fn disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &[u8],
    ) -> Result<Transmit, Error> {
        let connection = self.in_state(id, &[State::Established])?;
        let message = dreq(id, connection, private_data).emit()?;
        self.changed(id, |connection| connection.send(now, State::DreqSent, message))
    }

    /// Requests the queue pair of a datagram service. The query is repeated up to `retries` times
    /// (at most 15), each after the time `timeout`. The event [`Resolved`](super::Event::Resolved)
    /// or [`Ended`](super::Event::Ended) follows.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooManyConnections`] or [`Error::TooLong`].
    pub fn query(
        &mut self,
        now: Time,
        to: Address,
        query: &Query<'_>,
        timeout: Timeout,
        retries: u8,
    ) -> Result<(CommId, Transmit), Error> {
        let request_id = self.new_id()?;
        let message = Message::SidrReq(SidrReq { request_id, query: *query });
        let message = Mad { tid: tid(request_id, Exchange::Query), message }.emit()?;
        let timing =
            Timing::new(timeout, Timeout::default(), retries, self.settings.longest_timeout);
        let mut connection = Connection::new(State::SidrSent, to, query.service_id, timing);
        let transmit = connection.send(now, State::SidrSent, message);
        self.table.add(request_id, connection);
        Ok((request_id, self.sent(transmit)))
    }

    /// Answers a peer's query. The ID is free after that.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unknown`], [`Error::State`] or [`Error::TooLong`].
    pub fn answer(&mut self, id: CommId, resolution: &Resolution<'_>) -> Result<Transmit, Error> {
        let connection = self.in_state(id, &[State::SidrReceived])?;
        let rep = SidrRep {
            request_id: connection.remote_id.unwrap_or_default(),
            service_id: connection.service_id,
            resolution: *resolution,
        };
        let mad = Mad { tid: connection.tid, message: Message::SidrRep(rep) }.emit()?;
        let transmit = Transmit { to: connection.peer, mad };
        self.table.remove(id);
        Ok(self.sent(transmit))
    }

    /// Counts a MAD that the caller sends.
    pub(super) fn sent(&mut self, transmit: Transmit) -> Transmit {
        count(&mut self.counters.sent);
        transmit
    }

    /// Begins to end an established connection, whose peer has forgotten it (IBTA section
    /// 12.9.8.3.1). The DREQ is sent by the next call of [`expire`](Self::expire).
    pub(super) fn end_stale(&mut self, now: Time, id: CommId) {
        if let Ok(connection) = self.in_state(id, &[State::Established]) {
            let message = dreq(id, connection, &[]).to_bytes();
            self.table.change(id, |connection| {
                connection.send_soon(now, State::DreqSent, message);
            });
        }
    }

    pub(super) fn timing(&self, offer: &Offer<'_>, response: Timeout) -> Timing {
        let ack = offer.primary.ack_timeout;
        Timing::new(response, ack, offer.max_cm_retries, self.settings.longest_timeout)
    }

    fn new_id(&mut self) -> Result<CommId, Error> {
        self.table.unused_id().ok_or(Error::TooManyConnections(self.table.most()))
    }

    /// Checks that no connection has the queue pair, not even one in TimeWait.
    fn check_unused(&self, qpn: Qpn) -> Result<(), Error> {
        match self.table.by_local_qp(qpn) {
            Some(_) => Err(Error::QueuePairInUse(qpn)),
            None => Ok(()),
        }
    }

    fn in_state(&self, id: CommId, states: &[State]) -> Result<&Connection, Error> {
        let connection = self.table.get(id).ok_or(Error::Unknown(id))?;
        if states.contains(&connection.state) { Ok(connection) } else { Err(Error::State(id)) }
    }

    /// Changes a connection, which sends a message.
    fn changed(
        &mut self,
        id: CommId,
        change: impl FnOnce(&mut Connection) -> Transmit,
    ) -> Result<Transmit, Error> {
        let transmit = self.table.change(id, change).ok_or(Error::Unknown(id))?;
        Ok(self.sent(transmit))
    }
}

fn dreq<'a>(id: CommId, connection: &Connection, private_data: &'a [u8]) -> Mad<'a> {
    let remote_id = connection.remote_id.unwrap_or_default();
    let remote_qpn = connection.remote_qpn.unwrap_or_default();
    let dreq = Dreq { local_id: id, remote_id, remote_qpn, private_data };
    Mad { tid: tid(id, Exchange::Disconnect), message: Message::Dreq(dreq) }
}
