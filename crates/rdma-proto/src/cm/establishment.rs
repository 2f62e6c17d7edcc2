//! The communication manager: messages that establish a connection (REQ, MRA, REP and RTU).

use super::address::{Address, CommId};
use super::connection::{Connection, State};
use super::event::{Cause, Event, Output, Transmit};
use super::manager::Manager;
use super::wire::{Mra, Reason, Rej, Rejection, Rep, Req, Rtu, Subject, Transport};
use crate::counters::count;
use crate::time::Time;

impl Manager {
    pub(super) fn receive_req<'a>(
        &mut self,
        now: Time,
        from: Address,
        tid: u64,
        req: &Req<'a>,
    ) -> Output<'a> {
        let (offer, path) = (&req.offer, &req.offer.primary);
        // With another path, the sender could direct a connection's packets to a third host.
        let is_source = match from {
            Address::Gid(gid) => path.local_gid == gid,
            Address::Lid(lid) => path.local_lid == lid,
        };
        if !is_source {
            count(&mut self.counters.wrong_source);
            return Output::NONE;
        }
        if let Some(id) = self.table.by_peer(from, req.local_id) {
            return self.receive_known_req(id, from, tid, req);
        }
        let reason = if !matches!(offer.transport, Transport::Rc | Transport::Uc) {
            Reason::INVALID_TRANSPORT
        } else if offer.mtu().is_none() {
            Reason::INVALID_MTU
        } else if let Some(stale) = self.table.by_remote_qp(from, offer.qpn) {
            // IBTA section 12.9.8.3.1: the REQ is rejected, and the earlier connection ends.
            count(&mut self.counters.stale);
            self.end_stale(now, stale);
            Reason::STALE_CONNECTION
        } else if !self.is_listening(offer.service_id) || !offer.service_id.has_connections() {
            Reason::INVALID_SERVICE_ID
        } else {
            return self.receive_new_req(from, tid, req);
        };
        self.rej_req(from, tid, req, reason)
    }

    /// Adds a half-open connection. It has no timer, because it waits for the program.
    fn receive_new_req<'a>(&mut self, from: Address, tid: u64, req: &Req<'a>) -> Output<'a> {
        let (ca_guid, offer) = (req.ca_guid, req.offer);
        let Some(id) = self.half_open_id(offer.service_id) else { return Output::NONE };
        let timing = self.timing(&offer, offer.local_response_timeout);
        let state = State::ReqReceived;
        let mut connection = Connection::new(state, from, offer.service_id, timing);
        connection.tid = tid;
        connection.remote_id = Some(req.local_id);
        connection.remote_guid = ca_guid;
        connection.remote_qpn = Some(offer.qpn);
        // Alternate paths are not supported.
        connection.failover = u8::from(offer.alternate.local_lid.get() != 0);
        self.table.add(id, connection);
        Output::event(Event::Requested { id, from, ca_guid, offer })
    }

    /// Processes a REQ whose communication ID belongs to a connection of the same peer.
    fn receive_known_req(
        &mut self,
        id: CommId,
        from: Address,
        tid: u64,
        req: &Req<'_>,
    ) -> Output<'static> {
        count(&mut self.counters.duplicates);
        let Some(connection) = self.table.get(id) else { return Output::NONE };
        if connection.remote_qpn != Some(req.offer.qpn) {
            return self.rej_req(from, tid, req, Reason::DUPLICATE_COMM_ID);
        }
        match connection.state {
            State::ReqReceived => Output::transmit(self.mra(id, connection, Subject::Req)),
            // The REP was lost, or crossed with this REQ.
            State::RepSent => Output::transmit(connection.transmit()),
            State::TimeWait => self.rej_req(from, tid, req, Reason::STALE_CONNECTION),
            // A late copy. Its sender knows the state from later messages.
            _ => Output::NONE,
        }
    }

    pub(super) fn receive_mra(
        &mut self,
        now: Time,
        from: Address,
        mra: &Mra<'_>,
    ) -> Output<'static> {
        let waits = |connection: &Connection| match connection.state {
            // The REQ's sender does not know the peer's ID yet.
            State::ReqSent => connection.peer == from && mra.subject == Subject::Req,
            State::RepSent => connection.has(from, mra.local_id) && mra.subject == Subject::Rep,
            _ => false,
        };
        let id = mra.remote_id;
        if !self.table.get(id).is_some_and(waits) {
            count(&mut self.counters.unmatched);
            return Output::NONE;
        }
        let prolong = |connection: &mut Connection| connection.prolong(now, mra.service_timeout);
        if self.table.change(id, prolong) != Some(true) {
            count(&mut self.counters.duplicates);
        }
        Output::NONE
    }

    pub(super) fn receive_rep<'a>(
        &mut self,
        now: Time,
        from: Address,
        tid: u64,
        rep: &Rep<'a>,
    ) -> Output<'a> {
        let id = rep.remote_id;
        let Some(connection) = self.table.get(id) else {
            // The program has cancelled the attempt, and the peer did not receive the REJ. Or the
            // peer sends a REP that answers nothing.
            count(&mut self.counters.unmatched);
            return Output::transmit(self.rej_rep(from, tid, rep, Reason::INVALID_COMM_ID));
        };
        if connection.state == State::ReqSent && connection.peer == from {
            return self.receive_first_rep(now, from, tid, rep);
        }
        if !connection.has(from, rep.local_id) {
            count(&mut self.counters.unmatched);
            return Output::NONE;
        }
        let answer = match connection.state {
            State::RepReceived => self.mra(id, connection, Subject::Rep),
            // The RTU was lost, or crossed with this REP.
            State::Established if connection.is_active => connection.transmit(),
            _ => return self.unexpected(),
        };
        count(&mut self.counters.duplicates);
        Output::transmit(answer)
    }

    fn receive_first_rep<'a>(
        &mut self,
        now: Time,
        from: Address,
        tid: u64,
        rep: &Rep<'a>,
    ) -> Output<'a> {
        let (id, ca_guid, answer) = (rep.remote_id, rep.ca_guid, rep.answer);
        let refusal = if self.table.by_peer(from, rep.local_id).is_some() {
            Some(Reason::DUPLICATE_COMM_ID)
        } else if let Some(stale) = self.table.by_remote_qp(from, answer.qpn) {
            // IBTA section 12.9.8.3.1: the REP is rejected, and the earlier connection ends.
            count(&mut self.counters.stale);
            self.end_stale(now, stale);
            Some(Reason::STALE_CONNECTION)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.table.remove(id);
            let ended = Event::Ended { id, cause: Cause::Refused(reason), time_wait: false };
            return Output::both(self.rej_rep(from, tid, rep, reason), ended);
        }
        self.table.change(id, |connection| {
            connection.stay(State::RepReceived);
            connection.remote_id = Some(rep.local_id);
            connection.remote_guid = ca_guid;
            connection.remote_qpn = Some(answer.qpn);
        });
        Output::event(Event::Replied { id, ca_guid, answer })
    }

    fn rej_rep(&mut self, to: Address, tid: u64, rep: &Rep<'_>, reason: Reason) -> Transmit {
        let (local_id, remote_id) = (rep.remote_id, rep.local_id);
        let rejection = Rejection::new(reason);
        self.rej(to, tid, Rej { local_id, remote_id, subject: Subject::Rep, rejection })
    }

    pub(super) fn receive_rtu<'a>(&mut self, from: Address, rtu: &Rtu<'a>) -> Output<'a> {
        let id = rtu.remote_id;
        match self.find(from, id, rtu.local_id) {
            Some(State::RepSent) => {
                self.table.change(id, |connection| connection.stay(State::Established));
                Output::event(Event::Established { id, private_data: rtu.private_data })
            }
            Some(State::Established) => {
                count(&mut self.counters.duplicates);
                Output::NONE
            }
            Some(_) => self.unexpected(),
            None => Output::NONE,
        }
    }
}
