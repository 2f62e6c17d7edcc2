//! The communication manager: its timers.

use super::address::CommId;
use super::connection::{Connection, State};
use super::event::{Cause, Event, Output, Transmit};
use super::manager::Manager;
use super::wire::{Reason, Rej, Rejection, Subject};
use crate::counters::count;
use crate::time::Time;

impl Manager {
    /// Handles one expired timer. Returns `None` if no timer has expired, so the caller repeats the
    /// call until then.
    pub fn expire(&mut self, now: Time) -> Option<Output<'static>> {
        let (_, id) = self.table.first().filter(|&(deadline, _)| deadline <= now)?;
        let transmit = self.table.change(id, |connection| match connection.state {
            State::TimeWait => None,
            _ => connection.transmit_next(now),
        })?;
        if let Some((transmit, is_repeated)) = transmit {
            if is_repeated {
                count(&mut self.counters.retries);
            }
            return Some(Output::transmit(self.sent(transmit)));
        }
        let output = self.give_up(now, id);
        if output.transmit.is_some() {
            count(&mut self.counters.sent);
        }
        Some(output)
    }

    /// Ends TimeWait, or gives up an unanswered message.
    fn give_up(&mut self, now: Time, id: CommId) -> Output<'static> {
        let Some(connection) = self.table.remove(id) else { return Output::NONE };
        if connection.state == State::TimeWait {
            // Every connection with a REP has a queue pair.
            let qpn = connection.local_qpn.unwrap_or_default();
            return Output::event(Event::Released { id, qpn });
        }
        count(&mut self.counters.timeouts);
        // The peer may have received the message, so a REJ reports that the attempt is over.
        let is_attempt = matches!(connection.state, State::ReqSent | State::RepSent);
        let transmit = is_attempt.then(|| self.rej_timeout(id, &connection));
        // The active end's queue pair may send after a REP, even if its RTU was lost.
        let time_wait = matches!(connection.state, State::RepSent | State::DreqSent);
        if time_wait {
            self.table.add(id, connection);
            self.table.change(id, |connection| connection.enter_time_wait(now));
        }
        let event = Event::Ended { id, cause: Cause::Unanswered, time_wait };
        Output { transmit, event: Some(event) }
    }

    fn rej_timeout(&mut self, id: CommId, connection: &Connection) -> Transmit {
        let guid = self.settings.ca_guid.to_bytes();
        let rejection = Rejection { info: &guid, ..Rejection::new(Reason::TIMEOUT) };
        let remote_id = connection.remote_id.unwrap_or_default();
        let rej = Rej { local_id: id, remote_id, subject: Subject::Other, rejection };
        self.rej(connection.peer, connection.tid, rej)
    }
}
