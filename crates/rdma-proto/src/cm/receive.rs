//! The communication manager: its peers' messages.

use super::address::{Address, CommId};
use super::connection::{Connection, State};
use super::event::{Output, Transmit};
use super::manager::Manager;
use super::service::ServiceId;
use super::wire::{
    BAD_VERSION, CLASS_VERSION, Header, Mad, MadError, Message, Mra, Reason, Rej, Rejection, Req,
    Resolution, SidrRep, SidrReq, SidrStatus, Subject, UNSUPPORTED_METHOD, refusal,
};
use crate::counters::count;
use crate::time::Time;

impl Manager {
    /// Processes a received MAD. `from` is the address in the packet's headers. The caller checks
    /// the Q_Key and that the source queue pair is [`Transmit::QPN`].
    ///
    /// Any bytes may arrive. Those that are no message are dropped and counted.
    pub fn receive<'a>(&mut self, now: Time, from: Address, mad: &'a [u8]) -> Output<'a> {
        count(&mut self.counters.received);
        let output = match Mad::parse(mad) {
            Ok(Mad { tid, message }) => match message {
                Message::Req(req) => self.receive_req(now, from, tid, &req),
                Message::Mra(mra) => self.receive_mra(now, from, &mra),
                Message::Rej(rej) => self.receive_rej(now, from, &rej),
                Message::Rep(rep) => self.receive_rep(now, from, tid, &rep),
                Message::Rtu(rtu) => self.receive_rtu(from, &rtu),
                Message::Dreq(dreq) => self.receive_dreq(now, from, tid, &dreq),
                Message::Drep(drep) => self.receive_drep(now, from, &drep),
                Message::SidrReq(request) => self.receive_sidr_req(from, tid, &request),
                Message::SidrRep(reply) => self.receive_sidr_rep(from, &reply),
            },
            Err(error) => self.refuse(from, mad, error),
        };
        if output.transmit.is_some() {
            count(&mut self.counters.sent);
        }
        output
    }

    /// Drops what is not a message. A request to read or write an attribute is answered first. So
    /// is a REQ or SIDR_REQ of another version (IBTA section 12.6.7.2, and table 120).
    fn refuse(&mut self, from: Address, mad: &[u8], error: MadError) -> Output<'static> {
        let (counter, status) = match error {
            MadError::ClassVersion(_) => (&mut self.counters.unsupported_version, BAD_VERSION),
            MadError::Method(_) | MadError::Attribute(_) | MadError::Class(_) => {
                (&mut self.counters.unsupported, UNSUPPORTED_METHOD)
            }
            _ => {
                count(&mut self.counters.malformed);
                return Output::NONE;
            }
        };
        count(counter);
        if let Some(mad) = refusal(mad, status) {
            return Output::transmit(Transmit { to: from, mad });
        }
        match Header::parse(mad) {
            Ok((header, body)) if header.class_version != CLASS_VERSION => {
                let (id, _) = body.split_first_chunk().unwrap_or((&[0; 4], &[]));
                self.refuse_version(from, &header, CommId::new(u32::from_be_bytes(*id)))
            }
            _ => Output::NONE,
        }
    }

    fn refuse_version(&mut self, from: Address, header: &Header, id: CommId) -> Output<'static> {
        match header.attribute {
            Req::ATTRIBUTE => {
                let rejection = Rejection {
                    info: &[CLASS_VERSION],
                    ..Rejection::new(Reason::INVALID_CLASS_VERSION)
                };
                let rej =
                    Rej { local_id: CommId::NONE, remote_id: id, subject: Subject::Req, rejection };
                Output::transmit(self.rej(from, header.tid, rej))
            }
            SidrReq::ATTRIBUTE => {
                let status = SidrStatus::UNSUPPORTED_VERSION;
                Output::transmit(sidr_rep(from, header.tid, id, ServiceId::default(), status))
            }
            _ => Output::NONE,
        }
    }

    /// Returns the ID of a new half-open connection or query, if its listener may have another. So
    /// a flood of requests occupies a bounded amount of memory, and no queue pair.
    pub(super) fn half_open_id(&mut self, service_id: ServiceId) -> Option<CommId> {
        if self.table.half_open(service_id) >= Self::MAX_HALF_OPEN {
            count(&mut self.counters.half_open_full);
            return None;
        }
        let id = self.table.unused_id();
        if id.is_none() {
            count(&mut self.counters.table_full);
        }
        id
    }

    /// Returns the state of the connection with both IDs and this peer. Counts a message that
    /// belongs to no connection.
    pub(super) fn find(&mut self, from: Address, id: CommId, remote_id: CommId) -> Option<State> {
        let connection = self.table.get(id);
        let found = connection.filter(|connection| connection.has(from, remote_id));
        let state = found.map(|connection| connection.state);
        if state.is_none() {
            count(&mut self.counters.unmatched);
        }
        state
    }

    pub(super) fn unexpected(&mut self) -> Output<'static> {
        count(&mut self.counters.unexpected);
        Output::NONE
    }

    /// Returns an MRA: the program has received the message, but not decided about it.
    pub(super) fn mra(&self, id: CommId, connection: &Connection, subject: Subject) -> Transmit {
        let mra = Mra {
            local_id: id,
            remote_id: connection.remote_id.unwrap_or_default(),
            subject,
            service_timeout: self.settings.service_timeout,
            private_data: &[],
        };
        let mad = Mad { tid: connection.tid, message: Message::Mra(mra) }.to_bytes();
        Transmit { to: connection.peer, mad }
    }

    pub(super) fn rej(&mut self, to: Address, tid: u64, rej: Rej<'_>) -> Transmit {
        count(&mut self.counters.rejects);
        Transmit { to, mad: Mad { tid, message: Message::Rej(rej) }.to_bytes() }
    }

    /// Returns a REJ of a REQ that has no connection.
    pub(super) fn rej_req(
        &mut self,
        to: Address,
        tid: u64,
        req: &Req<'_>,
        reason: Reason,
    ) -> Output<'static> {
        let (local_id, remote_id) = (CommId::NONE, req.local_id);
        let rejection = Rejection::new(reason);
        let rej = Rej { local_id, remote_id, subject: Subject::Req, rejection };
        Output::transmit(self.rej(to, tid, rej))
    }
}

/// Returns a SIDR_REP without a queue pair.
pub(super) fn sidr_rep(
    to: Address,
    tid: u64,
    request_id: CommId,
    service_id: ServiceId,
    status: SidrStatus,
) -> Transmit {
    let resolution = Resolution { status, ..Resolution::default() };
    let message = Message::SidrRep(SidrRep { request_id, service_id, resolution });
    Transmit { to, mad: Mad { tid, message }.to_bytes() }
}
