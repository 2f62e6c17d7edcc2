//! Frames and completions that arrive.

use super::Messages;
use super::inbox::Target;
use crate::error::{ConnectionError, OperationError};
use crate::frame::{Body, CallId, Role};
use crate::link::{Arrival, Use};
use crate::output::{Chunk, Delivery, Incoming, Output};

impl Messages {
    /// Processes a frame that was received in a slot.
    pub fn received(&mut self, slot: u32, bytes: &[u8]) {
        let was_open = self.link.is_open();
        let arrival = self.link.receive(slot, bytes);
        self.end_fetched();
        let result = arrival.and_then(|arrival| match arrival {
            Some(arrival) => self.arrive(arrival),
            None => Ok(()),
        });
        if let Err(error) = result {
            self.link.fail(error);
        }
        self.events.extend(self.link.opened_since(was_open));
    }

    /// Processes the completion of a SEND.
    pub fn sent(&mut self, slot: u32) {
        if let Some(Use::Operation(index)) = self.link.sent(slot) {
            self.operations.change(index, |it| it.in_flight = it.in_flight.saturating_sub(1));
            self.settle(index);
        }
    }

    /// Processes the completion of a READ.
    pub fn fetched(&mut self, message: Incoming) {
        let Some((target, length)) = self.inbox.fetched(message) else { return };
        self.complete(message, target, length);
        self.end_offers();
    }

    /// Ends the operations that the peer has fetched.
    fn end_fetched(&mut self) {
        while self.peer_fetched != self.link.peer_fetched() {
            self.peer_fetched = self.peer_fetched.wrapping_add(1);
            if let Some(index) = self.operations.offer_over() {
                self.events.extend(self.operations.name(index).map(Output::Fetched));
                self.settle(index);
            }
        }
    }

    fn arrive(&mut self, arrival: Arrival) -> Result<(), ConnectionError> {
        let Arrival { body, chunk } = arrival;
        if self.inbox.partial.is_some() != matches!(body, Body::Rest) {
            return Err(ConnectionError::Interrupted);
        }
        let cost = chunk.cost;
        match body {
            Body::First { role, length } => {
                let target = self.target(role, length)?;
                self.inbox.begin(target, length);
                return self.part(chunk);
            }
            Body::Rest => return self.part(chunk),
            Body::Offer { role, length, source } => {
                if self.link.options.reads == 0 {
                    return Err(ConnectionError::Unexpected);
                }
                let target = self.target(role, length)?;
                let released = self.inbox.offer(target, length, source, cost);
                self.link.bytes.release(released);
                self.release(chunk);
                return Ok(());
            }
            Body::Cancel(id) if !self.requests.is_known(id) => {
                return Err(ConnectionError::Call(id));
            }
            Body::Cancel(id) => {
                if self.requests.cancel(id) {
                    self.events.push_back(Output::Cancelled(id));
                }
            }
            Body::Refusal(id) => self.refused(id)?,
            Body::Finish => self.peer_finished(),
            _ => return Err(ConnectionError::Unexpected),
        }
        self.link.bytes.release(cost);
        self.release(chunk);
        Ok(())
    }

    /// Finds the receiver of a new message.
    fn target(&mut self, role: Role, length: u32) -> Result<Target, ConnectionError> {
        let limit = self.link.options.max_message;
        if length > limit {
            return Err(ConnectionError::TooLong { length, limit });
        }
        match role {
            Role::Message => Ok(Target::Program(None)),
            Role::Request(id) if self.requests.open(id) => Ok(Target::Program(Some(id))),
            Role::Request(id) => Err(ConnectionError::Call(id)),
            Role::Reply(id) => {
                let target = self.answer(id)?;
                if target == Target::Discard {
                    let counters = &mut self.link.counters;
                    counters.late_replies = counters.late_replies.wrapping_add(1);
                }
                Ok(target)
            }
        }
    }

    /// Finds the call for a reply or a refusal.
    fn answer(&mut self, id: CallId) -> Result<Target, ConnectionError> {
        let operation = self.calls.end(id).ok_or(ConnectionError::Call(id))?;
        // A call that was cancelled before this end finished is over.
        let Some(outgoing) = self.operations.find(operation) else { return Ok(Target::Discard) };
        outgoing.awaits_answer = false;
        if outgoing.result.is_some() {
            self.settle(operation.index);
            return Ok(Target::Discard);
        }
        // A reply that arrives before its request was sent is not an answer.
        if outgoing.is_queued {
            return Err(ConnectionError::Call(id));
        }
        Ok(Target::Call(operation))
    }

    fn refused(&mut self, id: CallId) -> Result<(), ConnectionError> {
        if let Target::Call(operation) = self.answer(id)? {
            self.conclude(operation, Err(OperationError::Refused));
        }
        Ok(())
    }

    /// Receives the next part of the message that is arriving.
    fn part(&mut self, chunk: Chunk) -> Result<(), ConnectionError> {
        let Some(partial) = &mut self.inbox.partial else {
            return Err(ConnectionError::Interrupted);
        };
        let (message, target, length) = (partial.message, partial.target, partial.length);
        let (at, payload) = (partial.arrived, chunk.len);
        let missing = length.saturating_sub(at);
        if payload > missing {
            return Err(ConnectionError::Overrun { payload, missing });
        }
        partial.arrived = at.saturating_add(payload);
        let released = self.inbox.charge_part(target, chunk.cost, payload);
        self.link.bytes.release(released);
        if target == Target::Discard || payload == 0 {
            self.release(chunk);
        } else {
            self.events.push_back(Output::Part { message, length, at, chunk });
        }
        if payload == missing {
            self.inbox.partial = None;
            if target != Target::Discard {
                self.complete(message, target, length);
            }
        }
        Ok(())
    }

    /// Delivers a complete message, and those that waited for it.
    fn complete(&mut self, message: Incoming, target: Target, length: u32) {
        match target {
            Target::Program(_) => {
                self.inbox.complete(message);
                while let Some(delivery) = self.inbox.next_delivery() {
                    self.events.push_back(delivery);
                }
            }
            Target::Call(operation) => {
                let delivery = Delivery::Reply(operation);
                self.events.push_back(Output::Deliver { message, length, delivery });
                self.conclude(operation, Ok(()));
            }
            Target::Discard => self.events.push_back(Output::Discard(message)),
        }
    }

    /// Receives the end of the peer's messages: calls without a reply fail.
    fn peer_finished(&mut self) {
        self.link.peer_finished = true;
        for index in 0..self.calls.indices() {
            let Some(operation) = self.calls.end_at(index) else { continue };
            let Some(outgoing) = self.operations.find(operation) else { continue };
            outgoing.awaits_answer = false;
            if !outgoing.has_begun {
                self.operations.remove(operation.index);
                self.operations.end_offer(operation.index);
            }
            self.conclude(operation, Err(OperationError::PeerFinished));
        }
    }
}
