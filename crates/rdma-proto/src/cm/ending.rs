//! The communication manager: messages that end a connection (REJ, DREQ and DREP).

use super::address::{Address, CommId};
use super::connection::State;
use super::event::{Cause, Event, Output, Transmit};
use super::manager::Manager;
use super::wire::{Drep, Dreq, Mad, Message, Reason, Rej};
use crate::counters::count;
use crate::time::Time;

impl Manager {
    pub(super) fn receive_rej<'a>(
        &mut self,
        now: Time,
        from: Address,
        rej: &Rej<'a>,
    ) -> Output<'a> {
        let reason = rej.rejection.reason;
        let Some((id, state)) = self.rejected(from, rej) else {
            count(&mut self.counters.unmatched);
            return Output::NONE;
        };
        // Before a REP, the connection's queue pairs cannot send. But a stale connection of the
        // queue pair can (IBTA section 12.4.1).
        let time_wait = match state {
            State::ReqSent => reason == Reason::STALE_CONNECTION,
            State::ReqReceived => false,
            State::RepSent | State::RepReceived | State::Established | State::DreqSent => true,
            State::TimeWait | State::SidrSent | State::SidrReceived => return self.unexpected(),
        };
        if time_wait {
            self.table.change(id, |connection| connection.enter_time_wait(now));
        } else {
            self.table.remove(id);
        }
        Output::event(Event::Ended { id, cause: Cause::Rejected(rej.rejection), time_wait })
    }

    /// Returns the connection that a REJ is for, and its state.
    fn rejected(&self, from: Address, rej: &Rej<'_>) -> Option<(CommId, State)> {
        // A sender that gives up its REQ knows only its own ID, and proves it with its GUID. Once it has confirmed the
        // connection, it knows both.
        let is_cancelled = rej.remote_id == CommId::NONE && rej.rejection.reason == Reason::TIMEOUT;
        let id = if is_cancelled { self.table.by_peer(from, rej.local_id)? } else { rej.remote_id };
        let connection = self.table.get(id)?;
        // The sender of a REQ does not know the peer's ID yet.
        let matches = connection.has(from, rej.local_id)
            || connection.state == State::ReqSent && connection.peer == from;
        let is_unconfirmed = matches!(connection.state, State::ReqReceived | State::RepSent);
        let proved = is_unconfirmed && rej.rejection.info == connection.remote_guid.as_bytes();
        (matches && (proved || !is_cancelled)).then_some((id, connection.state))
    }

    pub(super) fn receive_dreq<'a>(
        &mut self,
        now: Time,
        from: Address,
        tid: u64,
        dreq: &Dreq<'a>,
    ) -> Output<'a> {
        let id = dreq.remote_id;
        let drep = Drep { local_id: id, remote_id: dreq.local_id, private_data: &[] };
        let mad = Mad { tid, message: Message::Drep(drep) }.to_bytes();
        let transmit = Transmit { to: from, mad };
        let connection = self.table.get(id);
        let Some(connection) = connection.filter(|connection| connection.has(from, dreq.local_id))
        else {
            // The connection is over at this end, so the peer need not repeat its DREQ.
            count(&mut self.counters.unmatched);
            return Output::transmit(transmit);
        };
        if connection.local_qpn != Some(dreq.remote_qpn) {
            count(&mut self.counters.unmatched);
            return Output::NONE;
        }
        match connection.state {
            // In RepSent, the RTU was lost; in DreqSent, both ends disconnect at once.
            State::RepSent | State::RepReceived | State::Established | State::DreqSent => {
                self.table.change(id, |connection| connection.enter_time_wait(now));
                let cause = Cause::Disconnected(dreq.private_data);
                Output::both(transmit, Event::Ended { id, cause, time_wait: true })
            }
            // The DREP was lost.
            State::TimeWait => {
                count(&mut self.counters.duplicates);
                Output::transmit(transmit)
            }
            _ => self.unexpected(),
        }
    }

    pub(super) fn receive_drep<'a>(
        &mut self,
        now: Time,
        from: Address,
        drep: &Drep<'a>,
    ) -> Output<'a> {
        let id = drep.remote_id;
        match self.find(from, id, drep.local_id) {
            Some(State::DreqSent) => {
                self.table.change(id, |connection| connection.enter_time_wait(now));
                let cause = Cause::Disconnected(drep.private_data);
                Output::event(Event::Ended { id, cause, time_wait: true })
            }
            Some(State::TimeWait) => {
                count(&mut self.counters.duplicates);
                Output::NONE
            }
            Some(_) => self.unexpected(),
            None => Output::NONE,
        }
    }
}
