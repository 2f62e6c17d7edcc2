//! The sends, calls and replies of this end, from their start until their future has taken the result.

use std::mem;
use std::task::{Poll, Waker};

use rdma_mem::Buffer;
use rdma_message::{Operation, OperationError};

use super::body::Body;
use super::sending::Sending;
use super::source::Source;
use super::wait;

/// The number of an operation. It is used again after the operation has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(usize);

#[derive(Debug)]
struct Pending {
    operation: Operation,
    waker: Option<Waker>,
    result: Option<Result<(), OperationError>>,
    reply: Body,
    source: Source,
    /// The length of the memory to which the whole message was copied.
    staged: u64,
    is_call: bool,
    /// Whether the future was dropped.
    is_abandoned: bool,
    /// The [period](Sending) in which the operation is counted while it is sending.
    period: u64,
}

impl Pending {
    /// Returns true if the operation ends, or continues, with the completion of a SEND.
    const fn is_sending(&self) -> bool {
        self.result.is_none() && (!self.is_call || !matches!(self.source, Source::Nothing))
    }
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
    /// The operations that end, or continue, with the completion of a SEND.
    sending: Sending,
    /// The total length of the memory to which whole messages were copied.
    staged: u64,
}

impl Operations {
    /// Adds an operation.
    pub(super) fn add(&mut self, operation: Operation, is_call: bool) -> Ticket {
        let pending = Pending {
            operation,
            waker: None,
            result: None,
            reply: Body::Empty,
            source: Source::Nothing,
            staged: 0,
            is_call,
            is_abandoned: false,
            period: if is_call { 0 } else { self.sending.begin() },
        };
        self.live += 1;
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

    /// Sets the source of an operation that has no result. Returns the old source.
    pub(super) fn set_source(&mut self, ticket: Ticket, source: Source) -> Source {
        let pending = self.pending.get_mut(ticket.0).and_then(Option::as_mut);
        let Some(pending) = pending.filter(|pending| pending.result.is_none()) else {
            return source;
        };
        let was_sending = pending.is_sending();
        let before = mem::replace(&mut pending.source, source);
        match (was_sending, pending.is_sending()) {
            (false, true) => pending.period = self.sending.begin(),
            (true, false) => self.sending.end(pending.period),
            _ => {}
        }
        before
    }

    /// Sets the memory that contains a message.
    pub(super) fn set_buffer(&mut self, ticket: Ticket, buffer: Buffer) {
        self.set_source(ticket, Source::Buffer(buffer));
    }

    /// Counts the memory that a message is copied to as staged until the peer has fetched it, or its last frame has a
    /// copy.
    pub(super) fn stage(&mut self, ticket: Ticket, buffer: &Buffer) {
        let bytes = buffer.len() as u64;
        if let Some(pending) = self.at(ticket) {
            pending.staged = bytes;
            self.staged += bytes;
        }
    }

    /// Returns the operation of a ticket.
    pub(super) fn operation(&mut self, ticket: Ticket) -> Option<Operation> {
        self.at(ticket).map(|pending| pending.operation)
    }

    /// Takes the task that waits for an operation.
    pub(super) fn take_waker(&mut self, operation: Operation) -> Option<Waker> {
        self.of(operation).and_then(|(_, pending)| pending.waker.take())
    }

    /// Stops counting the memory that a message was copied to.
    pub(super) fn unstage(&mut self, operation: Operation) {
        let staged = self.of(operation).map_or(0, |(_, pending)| mem::take(&mut pending.staged));
        self.staged -= staged;
    }

    /// Returns the total length of the memory to which whole messages were copied.
    pub(super) const fn staged(&self) -> u64 {
        self.staged
    }

    /// Takes the memory of a message, to lend it.
    pub(super) fn take_buffer(&mut self, operation: Operation) -> Option<Buffer> {
        let (ticket, pending) = self.of(operation)?;
        if !matches!(pending.source, Source::Buffer(_)) {
            return None;
        }
        self.set_source(ticket, Source::Nothing).into_buffer()
    }

    /// Returns memory that cannot be lent.
    pub(super) fn return_buffer(&mut self, operation: Operation, buffer: Buffer) {
        if let Some((ticket, _)) = self.of(operation) {
            self.set_buffer(ticket, buffer);
        }
    }

    /// Copies a part of a message whose bytes were kept. Returns the length, and the memory to free after the last part.
    pub(super) fn copy(
        &mut self,
        operation: Operation,
        at: u32,
        memory: &mut [u8],
    ) -> (usize, Option<Buffer>) {
        let Some((ticket, pending)) = self.of(operation) else { return (0, None) };
        let (bytes, start): (&[u8], u32) = match &pending.source {
            Source::Nothing => return (0, None),
            Source::Rest(rest, start) => (rest.bytes(), *start),
            Source::Buffer(buffer) => (buffer, 0),
        };
        let from = (at - start) as usize;
        let part = bytes.get(from..).and_then(|rest| rest.get(..memory.len()));
        let Some(part) = part else { return (0, None) };
        memory.copy_from_slice(part);
        let (length, is_last) = (part.len(), from + part.len() == bytes.len());
        if !is_last {
            return (length, None);
        }
        self.unstage(operation);
        (length, self.set_source(ticket, Source::Nothing).into_buffer())
    }

    /// Keeps the reply to a call.
    pub(super) fn reply(&mut self, operation: Operation, body: Body) {
        if let Some((_, pending)) = self.of(operation) {
            pending.reply = body;
        }
    }

    /// Ends an operation. Returns its task, and the memory to free.
    pub(super) fn complete(
        &mut self,
        operation: Operation,
        result: Result<(), OperationError>,
    ) -> (Option<Waker>, Option<Buffer>) {
        let Some((ticket, pending)) = self.of(operation) else { return (None, None) };
        let (was_sending, period) = (pending.is_sending(), pending.period);
        pending.result = Some(result);
        let spent = mem::take(&mut pending.source).into_buffer();
        let (is_abandoned, waker) = (pending.is_abandoned, pending.waker.take());
        self.live -= 1;
        if was_sending {
            self.sending.end(period);
        }
        if is_abandoned {
            self.remove(ticket);
        }
        (waker, spent)
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

    /// The operations that end, or continue, with the completion of a SEND.
    pub(super) const fn sending(&mut self) -> &mut Sending {
        &mut self.sending
    }

    /// Returns true if an operation ends, or continues, with the completion of a SEND.
    pub(super) fn has_sending(&self) -> bool {
        self.sending.are_any()
    }
}
