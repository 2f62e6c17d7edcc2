//! The communication manager: queries for datagram services (SIDR_REQ and SIDR_REP).

use super::address::Address;
use super::connection::{Connection, State, Timing};
use super::event::{Event, Output};
use super::manager::Manager;
use super::receive::sidr_rep;
use super::wire::{SidrRep, SidrReq, SidrStatus, Timeout};
use crate::counters::count;

impl Manager {
    pub(super) fn receive_sidr_req<'a>(
        &mut self,
        from: Address,
        tid: u64,
        request: &SidrReq<'a>,
    ) -> Output<'a> {
        let (request_id, query) = (request.request_id, request.query);
        if self.table.query_by_peer(from, request_id).is_some() {
            // The program's answer is for both.
            count(&mut self.counters.duplicates);
            return Output::NONE;
        }
        if !self.is_listening(query.service_id) || !query.service_id.has_datagrams() {
            let status = SidrStatus::UNSUPPORTED;
            return Output::transmit(sidr_rep(from, tid, request_id, query.service_id, status));
        }
        let Some(id) = self.half_open_id(query.service_id) else { return Output::NONE };
        // This end repeats nothing: the peer repeats its query.
        let timing = Timing::new(Timeout::default(), Timeout::default(), 0, Timeout::default());
        let state = State::SidrReceived;
        let mut connection = Connection::new(state, from, query.service_id, timing);
        connection.tid = tid;
        connection.remote_id = Some(request_id);
        self.table.add(id, connection);
        Output::event(Event::Queried { id, from, query })
    }

    pub(super) fn receive_sidr_rep<'a>(
        &mut self,
        from: Address,
        reply: &SidrRep<'a>,
    ) -> Output<'a> {
        let id = reply.request_id;
        let has_queue_pair = reply.resolution.status == SidrStatus::VALID;
        let is_asked = self.table.get(id).is_some_and(|query| {
            query.state == State::SidrSent
                && query.peer == from
                // A peer with another version cannot read the service ID.
                && (query.service_id == reply.service_id || !has_queue_pair)
        });
        if !is_asked {
            count(&mut self.counters.unmatched);
            return Output::NONE;
        }
        self.table.remove(id);
        Output::event(Event::Resolved { id, resolution: reply.resolution })
    }
}
