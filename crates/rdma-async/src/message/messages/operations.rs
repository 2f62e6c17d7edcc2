//! The sends, calls and replies of this end, from their start until their future has taken the result.

use std::task::{Poll, Waker};

use rdma_message::{Operation, OperationError};

use super::body::Body;
use crate::message::session::wait;

/// The number of an operation. It is used again after the operation has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(usize);

#[derive(Debug)]
struct Pending {
    operation: Operation,
    waker: Option<Waker>,
    result: Option<Result<(), OperationError>>,
    reply: Body,
    /// The bytes that are to be sent, if they could not be sent when the operation began.
    rest: Vec<u8>,
    /// The offset of the rest in the message.
    start: u32,
    is_call: bool,
    /// Whether the future was dropped.
    is_abandoned: bool,
}

/// The operations of this end.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    /// The ticket of each operation of the protocol, by its index.
    tickets: Vec<Option<Ticket>>,
    /// The number of operations without a result.
    live: usize,
    /// The number of them that end, or continue, with the completion of a SEND.
    sending: usize,
}

impl Operations {
    /// Adds an operation whose bytes from `start` on are `rest`.
    pub(super) fn add(&mut self, operation: Operation, is_call: bool) -> Ticket {
        let pending = Pending {
            operation,
            waker: None,
            result: None,
            reply: Body::Empty,
            rest: Vec::new(),
            start: 0,
            is_call,
            is_abandoned: false,
        };
        self.live += 1;
        self.sending += usize::from(!is_call);
        let place = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        if let Some(free) = self.pending.get_mut(place) {
            *free = Some(pending);
        }
        let index = operation.index() as usize;
        if index >= self.tickets.len() {
            self.tickets.resize(index + 1, None);
        }
        if let Some(ticket) = self.tickets.get_mut(index) {
            *ticket = Some(Ticket(place));
        }
        Ticket(place)
    }

    fn at(&mut self, ticket: Ticket) -> Option<&mut Pending> {
        self.pending.get_mut(ticket.0)?.as_mut()
    }

    fn of(&mut self, operation: Operation) -> Option<(Ticket, &mut Pending)> {
        let ticket = (*self.tickets.get(operation.index() as usize)?)?;
        let pending = self.pending.get_mut(ticket.0)?.as_mut();
        pending.filter(|pending| pending.operation == operation).map(|pending| (ticket, pending))
    }

    /// Keeps the bytes of a message from `start` on, to be sent later.
    pub(super) fn keep(&mut self, ticket: Ticket, start: u32, rest: &[u8]) {
        let Some(pending) = self.at(ticket).filter(|pending| pending.result.is_none()) else {
            return;
        };
        (pending.rest, pending.start) = (rest.to_vec(), start);
        self.sending += usize::from(self.at(ticket).is_some_and(|pending| pending.is_call));
    }

    /// Copies a part of a message whose bytes were kept. Returns the length.
    pub(super) fn copy(&mut self, operation: Operation, at: u32, memory: &mut [u8]) -> usize {
        let Some((_, pending)) = self.of(operation) else { return 0 };
        let from = (at - pending.start) as usize;
        let part = pending.rest.get(from..).and_then(|rest| rest.get(..memory.len()));
        let Some(part) = part else { return 0 };
        memory.copy_from_slice(part);
        let (length, is_call) = (part.len(), pending.is_call);
        if from + length == pending.rest.len() {
            pending.rest = Vec::new();
            self.sending -= usize::from(is_call);
        }
        length
    }

    /// Keeps the reply to a call.
    pub(super) fn reply(&mut self, operation: Operation, body: Body) {
        if let Some((_, pending)) = self.of(operation) {
            pending.reply = body;
        }
    }

    /// Ends an operation. Returns its task.
    pub(super) fn complete(
        &mut self,
        operation: Operation,
        result: Result<(), OperationError>,
    ) -> Option<Waker> {
        let (ticket, pending) = self.of(operation)?;
        let counts = !pending.is_call || !pending.rest.is_empty();
        pending.result = Some(result);
        pending.rest = Vec::new();
        let (is_abandoned, waker) = (pending.is_abandoned, pending.waker.take());
        self.live -= 1;
        self.sending -= usize::from(counts);
        if is_abandoned {
            self.remove(ticket);
        }
        waker
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Pending> {
        let pending = self.pending.get_mut(ticket.0)?.take()?;
        self.free.push(ticket.0);
        Some(pending)
    }

    /// Ready with the result of an operation, which then leaves.
    pub(super) fn poll(
        &mut self,
        ticket: Ticket,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Body, OperationError>> {
        match self.at(ticket) {
            Some(pending) if pending.result.is_none() => {
                wait(&mut pending.waker, waker);
                Poll::Pending
            }
            _ => Poll::Ready(match self.remove(ticket) {
                Some(Pending { result: Some(Ok(())), reply, .. }) => Ok(reply),
                Some(Pending { result: Some(Err(error)), .. }) => Err(error),
                _ => Err(OperationError::Unknown),
            }),
        }
    }

    /// Leaves an operation whose future was dropped. Returns the operation and its task if it has no
    /// result yet.
    pub(super) fn abandon(&mut self, ticket: Ticket) -> Option<(Operation, Option<Waker>)> {
        let pending = self.at(ticket)?;
        if pending.result.is_some() {
            self.remove(ticket);
            return None;
        }
        pending.is_abandoned = true;
        Some((pending.operation, pending.waker.take()))
    }

    /// Returns true if an operation has no result.
    pub(super) const fn has_live(&self) -> bool {
        self.live > 0
    }

    /// Returns true if an operation ends, or continues, with the completion of a SEND.
    pub(super) const fn has_sending(&self) -> bool {
        self.sending > 0
    }
}
