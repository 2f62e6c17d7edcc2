//! Frames with data, in the order of the operations.

use super::Messages;
use super::outgoing::{Outgoing, Stage};
use crate::error::OperationError;
use crate::frame::{Body, Role};
use crate::link::{Finish, Use};
use crate::output::{Operation, Output, Payload};

impl Messages {
    /// Returns the next frame with data, or the request to lend memory for one.
    pub(super) fn poll_transmit(&mut self) -> Option<Output> {
        let front = self.operations.front();
        let outgoing = front.and_then(|index| self.operations.get(index));
        // A refusal must not come between the parts of a message.
        if !outgoing.is_some_and(|it| it.has_begun)
            && let Some(id) = self.requests.next_refusal()
        {
            let output = self.send_single(Body::Refusal(id), Use::Data)?;
            self.requests.refused();
            return Some(output);
        }
        let Some(index) = front else { return self.poll_finish() };
        let operation = self.operations.name(index)?;
        let Outgoing { role, length, stage, is_held, .. } = *self.operations.get(index)?;
        if is_held {
            return None;
        }
        match stage {
            Stage::New if self.wants_offer(index) => self.lend(operation),
            Stage::New => {
                self.operations.get(index)?.stage = Stage::Parts;
                self.send_part(operation)
            }
            Stage::Parts => self.send_part(operation),
            Stage::Lending => None,
            Stage::Lent(source) => {
                let body = Body::Offer { role, length, source };
                let output = self.send_single(body, Use::Operation(index))?;
                self.operations.offer_sent(index);
                self.sent_all(index);
                Some(output)
            }
            Stage::Cancel => {
                let Role::Request(id) = role else { return None };
                let output = self.send_single(Body::Cancel(id), Use::Operation(index))?;
                self.operations.pop();
                Some(output)
            }
        }
    }

    /// Returns true if the message is to be offered instead of being sent in parts.
    fn wants_offer(&mut self, index: u32) -> bool {
        let options = &self.link.options;
        let can_offer = options.offers > 0 && self.link.opened().is_ok_and(|peer| peer.fetches);
        let eager = options.eager_bytes;
        can_offer && self.operations.get(index).is_some_and(|it| it.length > eager)
    }

    fn lend(&mut self, operation: Operation) -> Option<Output> {
        let options = &self.link.options;
        let (offers, bytes) = (options.offers, u64::from(options.offer_bytes));
        let (offered, offered_bytes) = (self.operations.offered, self.operations.offered_bytes);
        let outgoing = self.operations.get(operation.index)?;
        let length = outgoing.length;
        let total = offered_bytes.saturating_add(length.into());
        if offered > 0 && (offered >= offers || total > bytes) {
            return None;
        }
        outgoing.stage = Stage::Lending;
        self.operations.begin_offer(operation.index);
        Some(Output::Lend { operation, length })
    }

    /// Sends a frame without a payload.
    fn send_single(&mut self, body: Body, by: Use) -> Option<Output> {
        if !self.link.can_send(body, 0) {
            return None;
        }
        let mut transmit = self.link.send(body, Payload::Empty, by)?;
        if let Use::Operation(index) = by {
            transmit.begins = self.sent_frame(index, 0);
        }
        Some(Output::Send(transmit))
    }

    /// Sends the next part of a message.
    fn send_part(&mut self, operation: Operation) -> Option<Output> {
        let index = operation.index;
        let max = self.link.max_frame();
        let Outgoing { role, length, sent: at, has_begun, .. } = *self.operations.get(index)?;
        let body = if has_begun { Body::Rest } else { Body::First { role, length } };
        let len = length.saturating_sub(at).min(max.saturating_sub(body.header_bytes()));
        if !self.link.can_send(body, len) {
            return None;
        }
        let payload = match len {
            0 => Payload::Empty,
            _ => Payload::Message { operation, at, len },
        };
        let mut transmit = self.link.send(body, payload, Use::Operation(index))?;
        transmit.begins = self.sent_frame(index, len);
        if at.saturating_add(len) == length {
            self.sent_all(index);
        }
        Some(Output::Send(transmit))
    }

    /// Records a frame of an operation. Returns the operation if this is its first frame.
    fn sent_frame(&mut self, index: u32, len: u32) -> Option<Operation> {
        let outgoing = self.operations.get(index)?;
        let is_first = !core::mem::replace(&mut outgoing.has_begun, true);
        if is_first {
            match outgoing.role {
                Role::Message => {}
                Role::Request(_) => outgoing.awaits_answer = true,
                Role::Reply(id) => self.requests.end(id),
            }
        }
        outgoing.sent = outgoing.sent.saturating_add(len);
        self.operations.change(index, |it| it.in_flight = it.in_flight.saturating_add(1));
        if is_first { self.operations.name(index) } else { None }
    }

    /// Removes the operation at the front of the queue, whose message was sent, and decides its
    /// result. A call waits for its reply. A call that was cancelled in between stays, to send the
    /// cancel frame.
    fn sent_all(&mut self, index: u32) {
        let Some(outgoing) = self.operations.get(index) else { return };
        match (outgoing.role, outgoing.result) {
            (Role::Request(_), Some(Err(OperationError::Cancelled))) => {
                outgoing.stage = Stage::Cancel;
                return;
            }
            (Role::Request(_), _) => {}
            _ => self.operations.change(index, |it| _ = it.result.get_or_insert(Ok(()))),
        }
        self.operations.pop();
    }

    /// Sends the last frame, after all others.
    fn poll_finish(&mut self) -> Option<Output> {
        if self.link.finish != Finish::Wanted || !self.link.can_send(Body::Finish, 0) {
            return None;
        }
        self.link.finish = Finish::Sent;
        self.link.send(Body::Finish, Payload::Empty, Use::Data).map(Output::Send)
    }
}
