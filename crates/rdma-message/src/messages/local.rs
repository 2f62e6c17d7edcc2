//! The calls of the program.

use super::Messages;
use super::outgoing::{Outgoing, Stage};
use crate::error::{OperationError, SendError};
use crate::frame::{CallId, Remote, Role};
use crate::link::Finish;
use crate::output::{Chunk, Incoming, Operation};

impl Messages {
    /// Sends a message of this length.
    ///
    /// # Errors
    ///
    /// Fails if the connection is not open, if the peer no longer receives, or if a limit does not
    /// allow the message.
    pub fn send(&mut self, length: usize) -> Result<Operation, SendError> {
        let length = self.check_new(length)?;
        self.start(Outgoing::new(Role::Message, length))
    }

    /// Sends a request of this length. Its operation ends after the reply.
    ///
    /// # Errors
    ///
    /// Fails if the connection is not open, if the peer has finished, or if a limit does not allow
    /// the request.
    pub fn call(&mut self, length: usize) -> Result<Operation, SendError> {
        let length = self.check_new(length)?;
        if self.link.peer_finished {
            return Err(SendError::PeerFinished);
        }
        let limit = self.link.opened()?.calls;
        if limit == 0 {
            return Err(SendError::NoRequests);
        }
        let id = self.calls.reserve(limit).map_err(|is_exhausted| {
            if is_exhausted { SendError::Exhausted } else { SendError::Full }
        })?;
        let operation = self.start(Outgoing::new(Role::Request(id), length))?;
        self.calls.begin(id, operation);
        Ok(operation)
    }

    /// Sends the reply to a request. [`Options::operations`](crate::Options::operations) does not limit
    /// replies.
    ///
    /// # Errors
    ///
    /// Fails if the connection is not open, or if the peer has cancelled the request. Also fails if the
    /// peer no longer receives, or a limit does not allow the reply; the request then stays open.
    pub fn reply(&mut self, request: CallId, length: usize) -> Result<Operation, SendError> {
        if !self.requests.is_open(request) {
            self.link.opened()?;
            self.refuse(request);
            return Err(SendError::NotOpenRequest);
        }
        let length = self.check(length)?;
        let operation = self.start(Outgoing::new(Role::Reply(request), length))?;
        self.requests.answer(request);
        Ok(operation)
    }

    /// Refuses a request, because the program dropped it. The peer may have cancelled it. Does
    /// nothing if the request was answered.
    pub fn refuse(&mut self, request: CallId) {
        if self.link.finish == Finish::None {
            self.requests.refuse(request);
        }
    }

    /// Checks a message that is no reply. A reply does not count its operation: if the calls of both
    /// ends used up all operations, they would wait for each other's replies.
    fn check_new(&self, length: usize) -> Result<u32, SendError> {
        let length = self.check(length)?;
        if self.operations.live() >= self.link.options.operations {
            return Err(SendError::Full);
        }
        Ok(length)
    }

    /// Checks a message against the limits of its length and of the connection. Returns its length.
    fn check(&self, length: usize) -> Result<u32, SendError> {
        let limit = self.link.may_send()?.max_message;
        let fits = u32::try_from(length).ok().filter(|&length| length <= limit);
        fits.ok_or(SendError::TooLong { length, limit })
    }

    fn start(&mut self, outgoing: Outgoing) -> Result<Operation, SendError> {
        self.operations.add(outgoing).ok_or(SendError::Full)
    }

    /// Holds back an operation that was just started, until [`resume`](Self::resume). Operations after it
    /// wait, too. So a driver can prepare a long message while it does not lock this value.
    pub fn hold(&mut self, operation: Operation) {
        self.set_held(operation, true);
    }

    /// Lets an operation be sent that was held back.
    pub fn resume(&mut self, operation: Operation) {
        self.set_held(operation, false);
    }

    /// Returns true if a frame of the operation was sent, or the operation has ended.
    pub fn has_begun(&mut self, operation: Operation) -> bool {
        self.operations.find(operation).is_none_or(|outgoing| outgoing.has_begun)
    }

    fn set_held(&mut self, operation: Operation, is_held: bool) {
        if let Some(outgoing) = self.operations.find(operation) {
            outgoing.is_held = is_held;
        }
    }

    /// Cancels an operation. [`Output::Completed`](crate::Output::Completed) still follows.
    ///
    /// - If no frame was sent, nothing is sent; but the request of a reply is then refused.
    /// - Otherwise, a message or a reply is sent completely, and its result is that of sending it.
    /// - A call that was begun is sent completely too. The peer is notified that the reply is no
    ///   longer wanted, and a reply that arrives later is discarded. The operation ends after the
    ///   peer has answered, or when this end [finishes](Self::finish).
    ///
    /// The result is [`OperationError::Cancelled`] in the first and the last case.
    pub fn cancel(&mut self, operation: Operation) {
        let index = operation.index;
        let Some(outgoing) = self.operations.find(operation) else { return };
        if outgoing.result.is_some() {
            return;
        }
        match outgoing.role {
            role if !outgoing.has_begun => {
                self.operations.remove(index);
                self.operations.end_offer(index);
                if let Role::Reply(request) = role {
                    self.requests.retract(request);
                }
            }
            Role::Request(_) => {
                let is_waiting = outgoing.awaits_answer && !outgoing.is_queued;
                let is_last = self.link.finish != Finish::None;
                // No further call needs the index.
                outgoing.awaits_answer &= !is_last;
                if is_waiting && !is_last {
                    self.operations.queue_cancel(index);
                }
                self.events.extend(self.inbox.cancel(operation));
            }
            _ => return,
        }
        self.conclude(operation, Err(OperationError::Cancelled));
    }

    /// Reports that the peer can read the message of an operation at this address. `None` reports
    /// that it cannot be made readable; the message is then sent in parts.
    pub fn lent(&mut self, operation: Operation, source: Option<Remote>) {
        let lending = self.operations.find(operation).filter(|it| it.stage == Stage::Lending);
        let Some(outgoing) = lending else { return };
        outgoing.stage = source.map_or(Stage::Parts, Stage::Lent);
        if source.is_none() {
            self.operations.end_offer(operation.index);
        }
    }

    /// Releases a receive slot.
    pub fn release(&mut self, chunk: Chunk) {
        let Chunk { slot, .. } = chunk;
        self.link.release_slot(slot);
    }

    /// Reports that the program has taken a message or a request. They are taken in the order of
    /// their delivery; replies are not reported.
    pub fn taken(&mut self, message: Incoming) {
        let bytes = self.inbox.take(message);
        self.link.bytes.release(bytes);
    }

    /// Reports to the peer that the program no longer receives, so the peer starts no further message.
    /// The driver still takes what arrives, and discards it.
    pub fn stop(&mut self) {
        self.link.stops = true;
    }

    /// Ends this end's messages, after all pending operations. Open requests of the peer get no
    /// reply. [`Output::Flushed`](crate::Output::Flushed) follows when all operations are over.
    pub fn finish(&mut self) {
        if self.link.finish != Finish::None {
            return;
        }
        self.link.finish = Finish::Wanted;
        for index in 0..self.operations.indices() {
            // No further call needs the indices of the cancelled calls.
            if let Some(outgoing) = self.operations.get(index).filter(|it| it.result.is_some()) {
                outgoing.awaits_answer = false;
                self.settle(index);
            }
        }
    }
}
