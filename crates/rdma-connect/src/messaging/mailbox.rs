//! The state of a connection for messages: its protocol, what has arrived, and the tasks that wait.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use rdma_mem::Buffer;
use rdma_message::frame::{CallId, Remote};
use rdma_message::{
    self as machine, ConnectionError, Delivery, Incoming, Operation, Options as Limits, Output,
    Payload, SendError, Transmit,
};

use super::body::{Arriving, Body, Sizes};
use super::error::MessageError;
use super::operations::{Operations, Ticket};
use super::source::{Copied, LONG_COPY, LongCopy, Source};
use super::tasks::{Event, Tasks, Waiting};
use super::{End, Lent, LongRequests, Protocol};

/// The kind of an operation that begins.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_enums)] // a driver starts each
pub enum Start {
    /// A message without an answer.
    Send,
    /// A request.
    Call,
    /// The reply to a request.
    Reply(CallId),
}

/// The bytes of a message.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // a driver passes each
pub enum Content<'b> {
    /// Bytes to copy.
    Bytes(&'b [u8]),
    /// Registered memory; `None` after the operation has begun.
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

/// An operation that has begun.
#[derive(Debug)]
#[non_exhaustive]
pub struct Begun {
    /// The number of the operation.
    pub ticket: Ticket,
    /// The copy to make of a long message. The operation continues with [`Mailbox::copied`].
    pub copy: Option<LongCopy>,
}

/// A message, with its ID if it is a request.
pub type Received = (Body, Option<CallId>);

#[derive(Debug)]
struct Delivered {
    message: Incoming,
    body: Body,
    request: Option<CallId>,
}

/// The state of a connection for messages.
#[derive(Debug)]
pub struct Mailbox {
    machine: machine::Messages,
    limits: Limits,
    /// Whether the peer fetches long messages.
    peer_fetches: bool,
    operations: Operations,
    arriving: Arriving,
    delivered: VecDeque<Delivered>,
    tasks: Tasks,
    /// The task that waits for the end of a connection without handles.
    lingering: Waiting,
    has_finished: bool,
    has_flushed: bool,
    has_peer_finished: bool,
    /// Whether the program has dropped the connection.
    has_left: bool,
    end: End,
}

impl Mailbox {
    /// Creates the state for a protocol with these limits.
    #[must_use]
    pub fn new(machine: machine::Messages, limits: Limits) -> Self {
        Self {
            machine,
            limits,
            peer_fetches: false,
            operations: Operations::default(),
            arriving: Arriving::default(),
            delivered: VecDeque::new(),
            tasks: Tasks::default(),
            lingering: Waiting::default(),
            has_finished: false,
            has_flushed: false,
            has_peer_finished: false,
            has_left: false,
            end: End::default(),
        }
    }

    /// Returns the next message. `None` after the last one.
    ///
    /// # Errors
    /// If the connection has ended before the peer finished.
    pub fn poll_receive(
        &mut self,
        waiting: &mut Waiting,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Option<Received>, MessageError>> {
        if let Some(Delivered { message, body, request }) = self.delivered.pop_front() {
            self.machine.taken(message);
            return Poll::Ready(Ok(Some((body, request))));
        }
        if self.has_peer_finished {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = self.end.reason() {
            let error = error.unwrap_or(ConnectionError::Lost);
            return Poll::Ready(Err(MessageError::Ended(error)));
        }
        self.tasks.wait(Event::Receive, waiting, waker);
        Poll::Pending
    }

    /// Ready with the result of an operation.
    ///
    /// # Errors
    /// If the operation has failed.
    pub fn poll_result(
        &mut self,
        ticket: Ticket,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Body, MessageError>> {
        let ended = self.end.reason().flatten();
        let failed = |error| MessageError::Operation { error, ended };
        self.operations.poll(ticket, waker).map_err(failed)
    }

    /// Ready when the first frame of a message was sent. Returns true if the operation continues; the caller then
    /// [abandons](Self::abandon) it.
    ///
    /// # Errors
    /// If the operation has failed.
    pub fn poll_begun(
        &mut self,
        ticket: Ticket,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<bool, MessageError>> {
        let polled = self.poll_result(ticket, waker).map_ok(|_| false);
        let operation = self.operations.operation(ticket);
        let has_begun = operation.is_some_and(|operation| self.machine.has_begun(operation));
        if polled.is_pending() && has_begun { Poll::Ready(Ok(true)) } else { polled }
    }

    /// Begins a flush. Returns a number for [`poll_sent`](Self::poll_sent).
    pub fn flush(&mut self) -> u64 {
        self.operations.sending().flush()
    }

    /// Ready when the peer's device has all messages and replies that had begun when the flush began.
    ///
    /// # Errors
    /// If the connection has ended before.
    pub fn poll_sent(
        &mut self,
        flush: u64,
        waiting: &mut Waiting,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<(), MessageError>> {
        if let Some(result) = self.sent_at_end() {
            return Poll::Ready(result);
        }
        if self.operations.sending().is_over_before(flush) {
            return Poll::Ready(Ok(()));
        }
        self.tasks.wait(Event::Sent, waiting, waker);
        Poll::Pending
    }

    /// Returns the result of a wait for what was to be sent, if the connection has ended, or ends with an error.
    fn sent_at_end(&self) -> Option<Result<(), MessageError>> {
        let reason = self.end.reason().or_else(|| self.machine.error().map(Some))?;
        Some(reason.map_or(Ok(()), |error| Err(MessageError::Ended(error))))
    }

    /// Leaves an operation whose future was dropped. Returns its task, for the caller to drop without the lock.
    pub fn abandon(&mut self, ticket: Ticket) -> Option<Waker> {
        let (operation, waker) = self.operations.abandon(ticket)?;
        self.machine.cancel(operation);
        waker
    }

    /// Removes a task that no longer waits. Returns its waker, for the caller to drop without the lock. A task that was
    /// woken may leave what it was woken for to the next one, whose waker is then added to `woken`.
    pub fn forget(&mut self, waiting: &mut Waiting, woken: &mut Vec<Waker>) -> Option<Waker> {
        let (event, waker) = self.tasks.forget(waiting)?;
        let may_leave = event != Event::Receive || !self.delivered.is_empty();
        if waker.is_none() && may_leave {
            self.tasks.wake_next(event, woken);
        }
        waker
    }

    /// Returns true if a message was fetched and no frame could count it yet. The peer waits for that.
    #[must_use]
    pub fn owes_count(&self) -> bool {
        self.machine.owes_count()
    }

    /// Refuses a request that the program has dropped.
    pub fn refuse(&mut self, request: CallId) {
        self.machine.refuse(request);
    }

    /// Ends this end's messages. Adds the wakers of messages that wait for their start, and now fail, to `woken`.
    pub fn finish(&mut self, woken: &mut Vec<Waker>) {
        self.has_finished = true;
        self.machine.finish();
        Event::STARTS.into_iter().for_each(|event| self.tasks.wake(event, woken));
    }

    /// Ready when the peer's device has all messages, and the end after them.
    ///
    /// # Errors
    /// If the connection has ended before, unless nothing is missing.
    pub fn poll_flushed(
        &mut self,
        waiting: &mut Waiting,
        waker: &mut Option<Waker>,
    ) -> Poll<Result<(), MessageError>> {
        if self.has_flushed {
            return Poll::Ready(Ok(()));
        }
        if let Some(result) = self.sent_at_end() {
            return Poll::Ready(result);
        }
        self.tasks.wait(Event::End, waiting, waker);
        Poll::Pending
    }

    /// Discards what has arrived and will arrive, and ends this end's messages. The peer's later messages then fail.
    pub fn leave_program(&mut self, woken: &mut Vec<Waker>) {
        self.has_left = true;
        self.machine.stop();
        while let Some(Delivered { message, request, .. }) = self.delivered.pop_front() {
            self.machine.taken(message);
            if let Some(request) = request {
                self.machine.refuse(request);
            }
        }
        self.finish(woken);
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
        requests: &mut impl LongRequests,
    ) {
        let slot = chunk.slot();
        let Some(buffer) = requests.slots().take_receive(slot) else { return };
        let (start, part) = (chunk.start() as usize, chunk.len() as usize);
        let bytes = buffer.get(start..start + part).unwrap_or_default();
        let frame_bytes = self.limits.receive_bytes as usize;
        if chunk.len() != length {
            let window = self.limits.window_bytes as usize;
            let sizes = Sizes { message: length as usize, window };
            self.arriving.append(message, bytes, sizes, |length| requests.stage(length));
        } else if part * 2 >= frame_bytes
            && let Some(spare) = requests.stage(frame_bytes)
        {
            // The message keeps the memory where it arrived.
            requests.slots().set_receive(slot, spare);
            self.arriving.add(message, Body::Part { buffer, start, length: part });
            return self.machine.release(chunk);
        } else {
            let body =
                Body::short(bytes).unwrap_or_else(|| Body::copy(bytes, requests.stage(part)));
            self.arriving.add(message, body);
        }
        requests.slots().set_receive(slot, buffer);
        self.machine.release(chunk);
    }

    fn deliver(&mut self, message: Incoming, delivery: Delivery, woken: &mut Vec<Waker>) {
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
            self.tasks.wake_next(Event::Receive, woken);
        }
    }

    /// Returns true if the limits allow that a message is copied to memory of the pool as a whole.
    fn may_stage(&self, length: usize) -> bool {
        let staged = self.operations.staged();
        staged == 0 || staged + length as u64 <= u64::from(self.limits.offer_bytes)
    }

    /// Returns true if a message of this length is lent once it is copied.
    fn is_lent(&self, length: usize) -> bool {
        let Limits { offers, eager_bytes, .. } = self.limits;
        offers > 0 && self.peer_fetches && length as u64 > u64::from(eager_bytes)
    }

    /// Makes the message of an operation readable by the peer. If that is impossible, it is sent in parts. Adds the tasks
    /// to wake to `woken`.
    pub fn lend(
        &mut self,
        operation: Operation,
        requests: &mut impl LongRequests,
        woken: &mut Vec<Waker>,
    ) {
        let Some(buffer) = self.operations.take_buffer(operation) else {
            return self.machine.lent(operation, None);
        };
        match requests.lend(operation, buffer) {
            Lent::Begun => {}
            Lent::Later(buffer) => self.operations.return_buffer(operation, buffer),
            Lent::Refused(buffer) => {
                self.operations.return_buffer(operation, buffer);
                self.machine.lent(operation, None);
            }
        }
        self.wake_flushed(woken);
    }

    /// Continues after the message of an operation was made readable by the peer.
    pub fn lent(&mut self, operation: Operation, source: Remote) {
        self.machine.lent(operation, Some(source));
    }

    /// Adds a message that was read into this memory.
    pub fn fetched(&mut self, message: Incoming, buffer: Buffer) {
        let length = buffer.len();
        self.arriving.add(message, Body::Part { buffer, start: 0, length });
        self.machine.fetched(message);
    }

    /// Takes back the memory of a message that the peer no longer reads.
    fn end_lease(&mut self, operation: Operation, requests: &mut impl LongRequests) {
        self.operations.unstage(operation);
        requests.end_lease(operation);
    }

    /// Wakes the tasks that flush if operations have ended that a flush waits for. A call completes only with its reply.
    fn wake_flushed(&mut self, woken: &mut Vec<Waker>) {
        if self.operations.sending().take_ended() {
            self.tasks.wake(Event::Sent, woken);
        }
    }

    fn set_end(&mut self, error: Option<ConnectionError>, woken: &mut Vec<Waker>) {
        self.end.set(error);
        self.tasks.wake_all(woken);
    }
}

impl Mailbox {
    /// Begins an operation. Bytes that can be sent now are sent, and the rest is copied. All bytes of a long message are
    /// copied to registered memory, which is lent to the peer.
    ///
    /// # Errors
    /// If the message cannot be sent. Waits if it can be sent later.
    pub fn poll_start(
        &mut self,
        (start, content): (Start, &mut Content<'_>),
        (waiting, waker): (&mut Waiting, &mut Option<Waker>),
        requests: &mut impl LongRequests,
        woken: &mut Vec<Waker>,
    ) -> Poll<Result<Begun, MessageError>> {
        let operation = match self.begin(start, content.length()) {
            Ok(operation) => operation,
            Err(SendError::NotOpen | SendError::Full) => {
                let is_call = matches!(start, Start::Call);
                self.tasks.wait(if is_call { Event::Call } else { Event::Send }, waiting, waker);
                return Poll::Pending;
            }
            Err(error) => return Poll::Ready(Err(self.not_sent(error))),
        };
        let ticket = self.operations.add(operation, matches!(start, Start::Call));
        match content {
            Content::Buffer(buffer) => {
                if let Some(buffer) = buffer.take() {
                    self.operations.set_buffer(ticket, buffer);
                }
            }
            Content::Bytes(bytes) => {
                let (is_long, is_lent) = (bytes.len() > LONG_COPY, self.is_lent(bytes.len()));
                let is_staged = (is_long || is_lent) && self.may_stage(bytes.len());
                let memory = if is_staged { requests.stage(bytes.len()) } else { None };
                if let Some(memory) = &memory {
                    self.operations.stage(ticket, memory);
                }
                if is_long {
                    self.machine.hold(operation);
                    let copy = Some(LongCopy::new(memory, is_lent));
                    return Poll::Ready(Ok(Begun { ticket, copy }));
                }
                if let Some(mut buffer) = memory {
                    buffer.copy_from_slice(bytes);
                    self.operations.set_buffer(ticket, buffer);
                    return Poll::Ready(Ok(Begun { ticket, copy: None }));
                }
                let sent = self.send_from(operation, bytes, requests, woken);
                if let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
                    let sent = u32::try_from(sent).unwrap_or(u32::MAX);
                    let rest = Body::copy(rest, requests.stage(rest.len()));
                    self.operations.set_source(ticket, Source::Rest(rest, sent));
                }
            }
        }
        Poll::Ready(Ok(Begun { ticket, copy: None }))
    }

    /// Continues an operation after its message was copied.
    pub fn copied(&mut self, ticket: Ticket, copied: Copied, requests: &mut impl LongRequests) {
        let unused = self.operations.set_source(ticket, copied.into_source()).into_buffer();
        unused.into_iter().for_each(|memory| requests.free(memory));
        if let Some(operation) = self.operations.operation(ticket) {
            self.machine.resume(operation);
        }
    }

    /// Executes all instructions. The parts of the operation are copied from `bytes`. Returns the number of bytes that
    /// were sent.
    fn send_from(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        requests: &mut impl LongRequests,
        woken: &mut Vec<Waker>,
    ) -> usize {
        let mut sent = 0;
        while let Some(output) = self.machine.poll_output() {
            match &output {
                Output::Send(Transmit {
                    slot,
                    header,
                    payload: Payload::Message { operation: of, at, len },
                    ..
                }) if *of == operation => {
                    let part = *at as usize..*at as usize + *len as usize;
                    sent = part.end;
                    let part = bytes.get(part).unwrap_or_default();
                    requests.post_send(*slot, header.as_bytes(), |memory| copy(part, memory));
                }
                _ => self.act(output, requests, woken),
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
        match (error, self.machine.error()) {
            (SendError::Ended, Some(ended)) => MessageError::Ended(ended),
            (error, _) => MessageError::NotSent(error),
        }
    }
}

impl<R: LongRequests> Protocol<R> for Mailbox {
    fn received(&mut self, slot: u32, frame: &[u8]) {
        self.machine.received(slot, frame);
    }

    fn sent(&mut self, slot: u32) {
        self.machine.sent(slot);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.machine.poll_output()
    }

    fn act(&mut self, output: Output, requests: &mut R, woken: &mut Vec<Waker>) {
        match output {
            Output::PostReceive(slot) => requests.post_receive(slot),
            Output::Send(transmit) => {
                let Transmit { slot, header, payload, begins } = &transmit;
                let mut spent = None;
                requests.post_send(*slot, header.as_bytes(), |memory| match *payload {
                    Payload::Message { operation, at, len } => {
                        let memory = memory.get_mut(..len as usize).unwrap_or_default();
                        let (length, to_free) = self.operations.copy(operation, at, memory);
                        spent = to_free;
                        length
                    }
                    _ => 0,
                });
                spent.into_iter().for_each(|memory| requests.free(memory));
                // A message that is posted has begun.
                woken.extend(begins.and_then(|operation| self.operations.take_waker(operation)));
                self.wake_flushed(woken);
            }
            Output::Lend { operation, .. } => self.lend(operation, requests, woken),
            Output::Fetch { message, source, length } => {
                requests.fetch(message, source, length);
            }
            Output::Part { message, length, chunk, .. } => {
                self.part(message, length, chunk, requests);
            }
            Output::Deliver { message, delivery, .. } => {
                self.deliver(message, delivery, woken);
            }
            Output::Discard(message) => drop(self.arriving.take(message)),
            Output::Fetched(operation) => self.end_lease(operation, requests),
            Output::Completed { operation, result } => {
                // A message whose offer was not sent is not fetched.
                self.end_lease(operation, requests);
                let (waker, spent) = self.operations.complete(operation, result);
                spent.into_iter().for_each(|memory| requests.free(memory));
                woken.extend(waker);
                Event::STARTS.into_iter().for_each(|event| self.tasks.wake_next(event, woken));
                self.wake_flushed(woken);
            }
            Output::Opened(peer) => {
                self.peer_fetches = peer.fetches;
                Event::STARTS.into_iter().for_each(|event| self.tasks.wake(event, woken));
            }
            Output::Flushed => {
                self.has_flushed = true;
                self.tasks.wake(Event::End, woken);
            }
            Output::PeerFinished => {
                self.has_peer_finished = true;
                self.tasks.wake(Event::Receive, woken);
            }
            Output::Disconnect(_) => requests.fail(),
            Output::Ended(error) => self.set_end(error, woken),
            _ => {}
        }
    }

    fn lost(&mut self, _: &mut R) {
        self.machine.lost();
    }

    fn awaits(&self) -> (bool, bool) {
        if self.end.reason().is_some() {
            return (false, false);
        }
        let owes = self.machine.owes_count() || self.machine.owes_refusal();
        let finishes = self.has_finished && !self.has_flushed;
        let ends = finishes || self.has_left || self.tasks.are_waiting(Event::End);
        let waits = !self.tasks.is_empty();
        let sends = ends || owes || self.machine.awaits_sent() || self.operations.has_sending();
        (sends || waits || self.operations.has_live(), sends)
    }

    fn leave(&mut self) -> bool {
        true
    }

    fn await_end(&mut self, waker: &mut Option<Waker>) {
        self.tasks.wait(Event::End, &mut self.lingering, waker);
    }

    fn end(&mut self) -> &mut End {
        &mut self.end
    }
}
