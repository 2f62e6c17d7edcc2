//! The state of one connection or query.

use rdma_types::{Guid, Qpn};

use super::address::{Address, CommId};
use super::event::Transmit;
use super::service::ServiceId;
use super::wire::{MAD_LEN, Timeout};
use crate::time::Time;

/// The state of a connection, or of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The active end repeats its REQ until an answer arrives.
    ReqSent,
    /// The passive end waits for its program.
    ReqReceived,
    /// The passive end repeats its REP until an answer arrives.
    RepSent,
    /// The active end waits for its program.
    RepReceived,
    /// Both ends may send.
    Established,
    /// This end repeats its DREQ until an answer arrives.
    DreqSent,
    /// The connection has ended, but its packets may still arrive.
    TimeWait,
    /// This end repeats its SIDR_REQ until an answer arrives.
    SidrSent,
    /// This end waits for its program.
    SidrReceived,
}

impl State {
    pub(super) const fn is_query(self) -> bool {
        matches!(self, Self::SidrSent | Self::SidrReceived)
    }
}

/// A connection or a query, as one end sees it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    pub(super) peer: Address,
    /// The peer's ID; `None` until a message contains it.
    pub(super) remote_id: Option<CommId>,
    /// The GUID that the peer's message contains.
    pub(super) remote_guid: Guid,
    pub(super) service_id: ServiceId,
    /// The transaction ID of the REQ or SIDR_REQ.
    pub(super) tid: u64,
    /// Whether this end sent the REQ.
    pub(super) is_active: bool,
    /// The queue pair of this end; `None` until the program chooses it.
    pub(super) local_qpn: Option<Qpn>,
    pub(super) remote_qpn: Option<Qpn>,
    /// The code for the REP that answers the alternate path of the REQ.
    pub(super) failover: u8,
    pub(super) timing: Timing,
    /// The number of times that `message` will still be sent.
    pub(super) tries_left: u8,
    /// Whether an MRA has prolonged the current try.
    pub(super) prolonged: bool,
    pub(super) deadline: Option<Time>,
    /// The last message that this end sent.
    pub(super) message: [u8; MAD_LEN],
}

/// The times of a connection, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The time after which an unanswered message is repeated.
    pub(super) response: u64,
    /// The length of TimeWait, and of a round trip.
    pub(super) round_trip: u64,
    /// The number of repetitions.
    pub(super) retries: u8,
    /// The limit of all times.
    longest: u64,
}

impl Timing {
    /// The peer chooses some of these times, so none of them exceeds `longest`.
    ///
    /// The local ACK timeout is at least twice the packet lifetime. So it is the network's part of
    /// the time until an answer, and the time after which no packet of a connection still arrives.
    pub(super) fn new(response: Timeout, ack: Timeout, retries: u8, longest: Timeout) -> Self {
        let (longest, round_trip) = (longest.nanos(), ack.nanos());
        Self {
            response: response.nanos().saturating_add(round_trip).min(longest),
            round_trip: round_trip.min(longest),
            retries: retries.min(15),
            longest,
        }
    }
}

impl Connection {
    pub(super) fn new(state: State, peer: Address, service_id: ServiceId, timing: Timing) -> Self {
        Self {
            state,
            peer,
            remote_id: None,
            remote_guid: Guid::default(),
            service_id,
            tid: 0,
            is_active: false,
            local_qpn: None,
            remote_qpn: None,
            failover: 0,
            timing,
            tries_left: 0,
            prolonged: false,
            deadline: None,
            message: [0; MAD_LEN],
        }
    }

    /// Returns true if the connection counts towards the bound of its listener.
    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self.state, State::ReqReceived | State::RepSent | State::SidrReceived)
    }

    /// Returns true if a message with this source and sender's ID may belong to the connection.
    pub(super) fn has(&self, peer: Address, remote_id: CommId) -> bool {
        self.peer == peer && self.remote_id == Some(remote_id) && !self.state.is_query()
    }

    /// Returns the last message again.
    pub(super) const fn transmit(&self) -> Transmit {
        Transmit { to: self.peer, mad: self.message }
    }

    /// Enters a state without a timer.
    pub(super) const fn stay(&mut self, state: State) {
        self.state = state;
        self.deadline = None;
    }

    /// Enters a state that repeats a message until an answer arrives.
    pub(super) fn send(&mut self, now: Time, state: State, message: [u8; MAD_LEN]) -> Transmit {
        self.state = state;
        self.message = message;
        self.tries_left = self.timing.retries;
        self.prolonged = false;
        self.deadline = Some(now.plus(self.timing.response));
        self.transmit()
    }

    /// Enters a state that sends a message when the next timer expires, and then repeats it.
    pub(super) fn send_soon(&mut self, now: Time, state: State, message: [u8; MAD_LEN]) {
        let _sent_when_the_timer_expires = self.send(now, state, message);
        self.tries_left = self.tries_left.saturating_add(1);
        self.deadline = Some(now);
    }

    /// Returns the message and whether it was sent before, if a try remains.
    pub(super) fn transmit_next(&mut self, now: Time) -> Option<(Transmit, bool)> {
        let is_repeated = self.tries_left <= self.timing.retries;
        self.tries_left = self.tries_left.checked_sub(1)?;
        self.prolonged = false;
        self.deadline = Some(now.plus(self.timing.response));
        Some((self.transmit(), is_repeated))
    }

    /// Waits longer for the answer to the current try, because of an MRA. Each try is prolonged at
    /// most once, so a peer cannot delay the end without limit.
    pub(super) fn prolong(&mut self, now: Time, service: Timeout) -> bool {
        let prolongs = !self.prolonged;
        if prolongs {
            let Timing { round_trip, longest, .. } = self.timing;
            let later = now.plus(service.nanos().saturating_add(round_trip).min(longest));
            self.prolonged = true;
            self.deadline = self.deadline.max(Some(later));
        }
        prolongs
    }

    pub(super) const fn enter_time_wait(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.deadline = Some(now.plus(self.timing.round_trip));
    }
}
