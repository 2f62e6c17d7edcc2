//! The state of a connection for messages: its protocol, what has arrived, and the tasks that wait.

use std::collections::VecDeque;
use std::sync::Weak;
use std::task::{Poll, Waker};

use rdma_mem::Buffer;
use rdma_message::frame::CallId;
use rdma_message::{
    self as machine, ConnectionError, Delivery, Incoming, Operation, Options as Limits, Output,
    Payload, SendError, Transmit,
};

use super::body::{Arriving, Body};
use super::error::MessageError;
use super::lender::{Lender, Lent};
use super::operations::{Operations, Ticket};
use super::supply::Supply;
use crate::buffer::pool::Pool;
use crate::message::linger::Leave;
use crate::message::requests::{Long, Requests};
use crate::message::session::{Protocol, Session, State};

/// The kind of an operation that begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    Send,
    Call,
    Reply(CallId),
}

/// The bytes of a message.
#[derive(Debug)]
pub(super) enum Content<'b> {
    Bytes(&'b [u8]),
    /// `None` after the operation has begun.
    Buffer(Option<Buffer>),
}

impl Content<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.as_ref().map_or(0, |buffer| buffer.len()),
        }
    }
}

/// Tasks that wait for the same event.
#[derive(Debug, Default)]
struct Tasks(Vec<Waker>);

impl Tasks {
    fn wait(&mut self, waker: &mut Option<Waker>) {
        let is_new = |waker: &mut Waker| !self.0.iter().any(|known| known.will_wake(waker));
        self.0.extend(waker.take_if(is_new));
    }

    const fn are_waiting(&self) -> bool {
        !self.0.is_empty()
    }

    fn wake(&mut self, woken: &mut Vec<Waker>) {
        woken.append(&mut self.0);
    }
}

/// A message, with its ID if it is a request.
pub(super) type Received = (Body, Option<CallId>);

#[derive(Debug)]
struct Delivered {
    message: Incoming,
    body: Body,
    request: Option<CallId>,
}

#[derive(Debug)]
pub(super) struct Mailbox {
    machine: machine::Messages,
    supply: Supply,
    lender: Lender,
    limits: Limits,
    /// Whether the peer fetches long messages.
    peer_fetches: bool,
    operations: Operations,
    arriving: Arriving,
    delivered: VecDeque<Delivered>,
    receivers: Tasks,
    starters: Tasks,
    /// The tasks that wait for the end: of this end's messages, or of the connection.
    enders: Tasks,
    has_finished: bool,
    has_flushed: bool,
    has_peer_finished: bool,
    /// Whether the program has dropped the connection.
    has_left: bool,
    /// The reason of the end. The inner `None` means that both ends have finished.
    ended: Option<Option<ConnectionError>>,
}

impl Mailbox {
    pub(super) fn new(machine: machine::Messages, pool: Pool, limits: Limits) -> Self {
        Self {
            machine,
            supply: Supply::new(pool),
            lender: Lender::new(limits.offers as usize),
            limits,
            peer_fetches: false,
            operations: Operations::default(),
            arriving: Arriving::default(),
            delivered: VecDeque::new(),
            receivers: Tasks::default(),
            starters: Tasks::default(),
            enders: Tasks::default(),
            has_finished: false,
            has_flushed: false,
            has_peer_finished: false,
            has_left: false,
            ended: None,
        }
    }

    pub(super) const fn supply(&mut self) -> &mut Supply {
        &mut self.supply
    }

    /// Returns the next message. `None` after the last one.
    pub(super) fn poll_receive(
        &mut self,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Option<Received>, MessageError>> {
        if let Some(Delivered { message, body, request }) = self.delivered.pop_front() {
            self.machine.taken(message);
            return Poll::Ready(Ok(Some((body, request))));
        }
        if self.has_peer_finished {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = self.ended {
            let error = error.unwrap_or(ConnectionError::Lost);
            return Poll::Ready(Err(MessageError::Ended(error)));
        }
        self.receivers.wait(waker);
        Poll::Pending
    }

    /// Ready with the result of an operation.
    pub(super) fn poll_result(
        &mut self,
        ticket: Ticket,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Body, MessageError>> {
        let ended = self.ended.flatten();
        let failed = |error| MessageError::Operation { error, ended };
        self.operations.poll(ticket, waker).map_err(failed)
    }

    /// Leaves an operation whose future was dropped. Returns its task, for the caller to drop without the lock.
    pub(super) fn abandon(&mut self, ticket: Ticket) -> Option<Waker> {
        let (operation, waker) = self.operations.abandon(ticket)?;
        self.machine.cancel(operation);
        waker
    }

    /// Refuses a request that the program has dropped.
    pub(super) fn refuse(&mut self, request: CallId) {
        self.machine.refuse(request);
    }

    /// Ends this end's messages.
    pub(super) fn finish(&mut self) {
        self.has_finished = true;
        self.machine.finish();
    }

    /// Ready when the peer's device has all messages, and the end after them.
    pub(super) fn poll_flushed(
        &mut self,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<(), MessageError>> {
        if self.has_flushed {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = self.ended {
            let error = error.unwrap_or(ConnectionError::Lost);
            return Poll::Ready(Err(MessageError::Ended(error)));
        }
        self.enders.wait(waker);
        Poll::Pending
    }

    /// Discards what has arrived and will arrive, and ends this end's messages.
    pub(super) fn leave_program(&mut self) {
        self.has_left = true;
        while let Some(Delivered { message, request, .. }) = self.delivered.pop_front() {
            self.machine.taken(message);
            if let Some(request) = request {
                self.machine.refuse(request);
            }
        }
        self.finish();
    }

    fn begin(&mut self, start: Start, length: usize) -> Result<Operation, SendError> {
        match start {
            Start::Send => self.machine.send(length),
            Start::Call => self.machine.call(length),
            Start::Reply(request) => self.machine.reply(request, length),
        }
    }

    /// Keeps a part of a message, and releases its slot.
    fn part(
        &mut self,
        message: Incoming,
        length: u32,
        chunk: machine::Chunk,
        requests: &mut Requests,
    ) {
        let slot = chunk.slot();
        let Some(buffer) = requests.take_receive(slot) else { return };
        let (start, part) = (chunk.start() as usize, chunk.len() as usize);
        let bytes = buffer.get(start..start + part).unwrap_or_default();
        let frame_bytes = self.limits.receive_bytes as usize;
        if chunk.len() != length {
            self.arriving.append(message, bytes);
        } else if part * 2 >= frame_bytes
            && let Ok(Some(spare)) = self.supply.blocking().try_allocate(frame_bytes)
        {
            // The message keeps the memory where it arrived.
            requests.set_receive(slot, spare);
            self.arriving.add(message, Body::Part { buffer, start, length: part });
            return self.machine.release(chunk);
        } else if let Ok(Some(mut copy)) = self.supply.blocking().try_allocate(part) {
            copy.copy_from_slice(bytes);
            self.arriving.add(message, Body::Part { buffer: copy, start: 0, length: part });
        } else {
            self.arriving.append(message, bytes);
        }
        requests.set_receive(slot, buffer);
        self.machine.release(chunk);
    }

    fn deliver(&mut self, message: Incoming, delivery: Delivery) {
        let body = self.arriving.take(message);
        let request = match delivery {
            Delivery::Reply(operation) => return self.operations.reply(operation, body),
            Delivery::Request(request) => Some(request),
            _ => None,
        };
        if self.has_left {
            self.machine.taken(message);
            request.into_iter().for_each(|request| self.machine.refuse(request));
        } else {
            self.delivered.push_back(Delivered { message, body, request });
        }
    }

    /// Returns memory for a message that is to be lent, if the limits allow it.
    fn stage(&mut self, length: usize) -> Option<Buffer> {
        let Limits { offers, offer_bytes, eager_bytes, .. } = self.limits;
        let (staged, bytes) = (self.operations.staged(), length as u64);
        let has_room = staged == 0 || staged + bytes <= u64::from(offer_bytes);
        let is_long = offers > 0 && self.peer_fetches && bytes > u64::from(eager_bytes);
        if is_long && has_room { self.supply.stage(length) } else { None }
    }

    /// Makes the message of an operation readable by the peer. If that is impossible, it is sent in parts.
    fn lend(&mut self, operation: Operation, requests: &mut Requests) {
        let Some(buffer) = self.operations.take_buffer(operation) else {
            return self.machine.lent(operation, None);
        };
        match self.lender.lend(operation, buffer, self.supply.blocking(), requests) {
            Lent::Begun => {}
            Lent::Later(buffer) => self.operations.return_buffer(operation, buffer),
            Lent::Refused(buffer) => {
                self.operations.return_buffer(operation, buffer);
                self.machine.lent(operation, None);
            }
        }
    }

    /// Takes back the memory of a message that the peer no longer reads.
    fn end_loan(&mut self, operation: Operation, requests: &mut Requests) {
        self.operations.unstage(operation);
        self.lender.end(operation, requests);
    }

    fn end(&mut self, error: Option<ConnectionError>, woken: &mut Vec<Waker>) {
        self.ended = Some(error);
        for tasks in [&mut self.receivers, &mut self.starters, &mut self.enders] {
            tasks.wake(woken);
        }
    }
}

impl State<Mailbox> {
    /// Begins an operation. Bytes that can be sent now are sent, and the rest is copied. All bytes of a long message are
    /// copied to registered memory, which is lent to the peer.
    ///
    /// # Errors
    /// If the message cannot be sent. Waits if it can be sent later.
    pub(super) fn poll_start(
        &mut self,
        start: Start,
        content: &mut Content<'_>,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Ticket, MessageError>> {
        let operation = match self.protocol.begin(start, content.length()) {
            Ok(operation) => operation,
            Err(SendError::NotOpen | SendError::Full) => {
                self.protocol.starters.wait(waker);
                return Poll::Pending;
            }
            Err(error) => return Poll::Ready(Err(self.protocol.not_sent(error))),
        };
        let ticket = self.protocol.operations.add(operation, matches!(start, Start::Call));
        match content {
            Content::Buffer(buffer) => {
                if let Some(buffer) = buffer.take() {
                    self.protocol.operations.set_buffer(ticket, buffer);
                }
            }
            Content::Bytes(bytes) => self.begin(operation, ticket, bytes),
        }
        Poll::Ready(Ok(ticket))
    }

    fn begin(&mut self, operation: Operation, ticket: Ticket, bytes: &[u8]) {
        if let Some(mut buffer) = self.protocol.stage(bytes.len()) {
            buffer.copy_from_slice(bytes);
            return self.protocol.operations.set_staged(ticket, buffer);
        }
        let sent = self.send_from(operation, bytes);
        if let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            self.protocol.operations.keep(ticket, u32::try_from(sent).unwrap_or(u32::MAX), rest);
        }
    }

    /// Executes all instructions. The parts of the operation are copied from `bytes`. Returns the number of bytes that
    /// were sent.
    fn send_from(&mut self, operation: Operation, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while let Some(output) = self.protocol.machine.poll_output() {
            match &output {
                Output::Send(Transmit {
                    slot,
                    header,
                    payload: Payload::Message { operation: of, at, len },
                }) if *of == operation => {
                    let part = *at as usize..*at as usize + *len as usize;
                    sent = part.end;
                    let part = bytes.get(part).unwrap_or_default();
                    self.requests.send(*slot, header.as_bytes(), |memory| copy(part, memory));
                }
                _ => self.act(output),
            }
        }
        sent
    }
}

/// Copies a part of a message into the memory of a SEND. Returns the length.
fn copy(part: &[u8], memory: &mut [u8]) -> usize {
    let Some(memory) = memory.get_mut(..part.len()) else { return 0 };
    memory.copy_from_slice(part);
    part.len()
}

impl Mailbox {
    /// Returns the error of an operation that does not begin.
    fn not_sent(&self, error: SendError) -> MessageError {
        match (error, self.ended.flatten()) {
            (SendError::Ended, Some(ended)) => MessageError::Ended(ended),
            (error, _) => MessageError::NotSent(error),
        }
    }
}

impl Protocol for Mailbox {
    fn received(&mut self, slot: u32, frame: &[u8]) {
        self.machine.received(slot, frame);
    }

    fn sent(&mut self, slot: u32) {
        self.machine.sent(slot);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.machine.poll_output()
    }

    fn act(&mut self, output: Output, requests: &mut Requests, woken: &mut Vec<Waker>) {
        match output {
            Output::PostReceive(slot) => requests.post_receive(slot),
            Output::Send(transmit) => {
                let Transmit { slot, header, payload } = &transmit;
                requests.send(*slot, header.as_bytes(), |memory| match *payload {
                    Payload::Message { operation, at, len } => {
                        let memory = memory.get_mut(..len as usize).unwrap_or_default();
                        self.operations.copy(operation, at, memory)
                    }
                    _ => 0,
                });
            }
            Output::Lend { operation, .. } => self.lend(operation, requests),
            Output::Fetch { message, source, length } => {
                self.supply.fetch(message, source, length, requests);
            }
            Output::Part { message, length, chunk, .. } => {
                self.part(message, length, chunk, requests);
            }
            Output::Deliver { message, delivery, .. } => {
                self.deliver(message, delivery);
                self.receivers.wake(woken);
            }
            Output::Discard(message) => drop(self.arriving.take(message)),
            Output::Fetched(operation) => self.end_loan(operation, requests),
            Output::Completed { operation, result } => {
                // A message whose offer was not sent is not fetched.
                self.end_loan(operation, requests);
                woken.extend(self.operations.complete(operation, result));
                self.starters.wake(woken);
            }
            Output::Opened(peer) => {
                self.peer_fetches = peer.fetches;
                self.starters.wake(woken);
            }
            Output::Flushed => {
                self.has_flushed = true;
                self.enders.wake(woken);
            }
            Output::PeerFinished => {
                self.has_peer_finished = true;
                self.receivers.wake(woken);
            }
            Output::Disconnect(_) => requests.fail(),
            Output::Ended(error) => self.end(error, woken),
            _ => {}
        }
    }

    fn long_completed(&mut self, long: Long, requests: &mut Requests) {
        match long {
            Long::Bound { loan, window } => {
                if let Some((operation, remote)) = self.lender.bound(loan, window, requests) {
                    self.machine.lent(operation, Some(remote));
                }
            }
            Long::Invalidated { loan, window } => {
                if let Some(operation) = self.lender.invalidated(loan, window) {
                    self.lend(operation, requests);
                }
            }
            Long::Fetched { message, buffer } => {
                let length = buffer.len();
                self.arriving.add(message, Body::Part { buffer, start: 0, length });
                self.machine.fetched(message);
            }
        }
    }

    fn enter(&mut self, session: &Weak<Session<Self>>) {
        self.supply.enter(session);
    }

    fn lost(&mut self) {
        self.lender.close();
        self.supply.close();
        self.machine.lost();
    }

    fn awaits(&self) -> (bool, bool) {
        if self.ended.is_some() {
            return (false, false);
        }
        let owes = self.machine.owes_count();
        let finishes = self.has_finished && !self.has_flushed;
        let ends = finishes || self.has_left || self.enders.are_waiting();
        let waits = self.receivers.are_waiting() || self.starters.are_waiting();
        let sends = ends || owes || self.machine.awaits_sent() || self.operations.has_sending();
        (sends || waits || self.operations.has_live(), sends)
    }
}

impl Leave for Mailbox {
    fn leave(&mut self) -> bool {
        true
    }

    fn poll_ended(&mut self, waker: &mut Option<Waker>) -> Poll<()> {
        if self.has_ended() {
            return Poll::Ready(());
        }
        self.enders.wait(waker);
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}
