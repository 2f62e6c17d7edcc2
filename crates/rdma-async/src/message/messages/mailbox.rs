//! The state of a connection for messages: its protocol, what has arrived, and the tasks that wait.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use rdma_mem::BufferPool;
use rdma_message::frame::CallId;
use rdma_message::{
    self as machine, ConnectionError, Delivery, Incoming, Operation, Output, Payload, SendError,
    Transmit,
};

use super::body::{Arriving, Body};
use super::error::MessageError;
use super::operations::{Operations, Ticket};
use crate::message::linger::Leave;
use crate::message::requests::Requests;
use crate::message::session::{Protocol, State};

/// The kind of an operation that begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    Send,
    Call,
    Reply(CallId),
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
    /// The memory for receives, if a message keeps its own.
    pool: BufferPool,
    frame_bytes: usize,
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
    pub(super) fn new(machine: machine::Messages, pool: BufferPool, frame_bytes: usize) -> Self {
        Self {
            machine,
            pool,
            frame_bytes,
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
        if chunk.len() != length {
            self.arriving.append(message, bytes);
        } else if part * 2 >= self.frame_bytes
            && let Ok(Some(spare)) = self.pool.try_allocate(self.frame_bytes)
        {
            // The message keeps the memory where it arrived.
            requests.set_receive(slot, spare);
            self.arriving.add(message, Body::Part { buffer, start, length: part });
            return self.machine.release(chunk);
        } else if let Ok(Some(mut copy)) = self.pool.try_allocate(part) {
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

    fn end(&mut self, error: Option<ConnectionError>, woken: &mut Vec<Waker>) {
        self.ended = Some(error);
        for tasks in [&mut self.receivers, &mut self.starters, &mut self.enders] {
            tasks.wake(woken);
        }
    }
}

impl State<Mailbox> {
    /// Begins an operation. What can be sent now is sent from `bytes`, and the rest is copied.
    ///
    /// # Errors
    /// If the message cannot be sent. Waits if it can be sent later.
    pub(super) fn poll_start(
        &mut self,
        start: Start,
        bytes: &[u8],
        waker: &mut Option<Waker>,
    ) -> Poll<Result<Ticket, MessageError>> {
        let operation = match self.protocol.begin(start, bytes.len()) {
            Ok(operation) => operation,
            Err(SendError::NotOpen | SendError::Full) => {
                self.protocol.starters.wait(waker);
                return Poll::Pending;
            }
            Err(error) => return Poll::Ready(Err(self.protocol.not_sent(error))),
        };
        let ticket = self.protocol.operations.add(operation, matches!(start, Start::Call));
        let sent = self.send_from(operation, bytes);
        if let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            self.protocol.operations.keep(ticket, u32::try_from(sent).unwrap_or(u32::MAX), rest);
        }
        Poll::Ready(Ok(ticket))
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
            // This end lends nothing, because its options allow no offers.
            Output::Lend { operation, .. } => self.machine.lent(operation, None),
            Output::Part { message, length, chunk, .. } => {
                self.part(message, length, chunk, requests);
            }
            Output::Deliver { message, delivery, .. } => {
                self.deliver(message, delivery);
                self.receivers.wake(woken);
            }
            Output::Discard(message) => drop(self.arriving.take(message)),
            Output::Completed { operation, result } => {
                woken.extend(self.operations.complete(operation, result));
                self.starters.wake(woken);
            }
            Output::Opened(_) => self.starters.wake(woken),
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

    fn lost(&mut self) {
        self.machine.lost();
    }

    fn awaits(&self) -> (bool, bool) {
        if self.ended.is_some() {
            return (false, false);
        }
        let finishes = self.has_finished && !self.has_flushed;
        let ends = finishes || self.has_left || self.enders.are_waiting();
        let waits = self.receivers.are_waiting() || self.starters.are_waiting();
        let sends = ends || self.operations.has_sending();
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
