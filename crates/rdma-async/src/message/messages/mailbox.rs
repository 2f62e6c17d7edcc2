//! The state of a connection for messages, with the memory of its long messages.

use std::sync::Weak;
use std::task::{Poll, Waker};

use rdma_connect::messaging::{
    self, Begun, Content, Copied, End, LeaseRequests as _, Lender, Lent, LongRequests,
    MessageError, Protocol, Slots, Start, Ticket, Waiting,
};
use rdma_mem::Buffer;
use rdma_message::frame::{CloseReason, Remote};
use rdma_message::{self as machine, Incoming, Operation, Options as Limits, Output};

use super::supply::Supply;
use crate::buffer::pool::Pool;
use crate::message::requests::{Long, Requests};
use crate::message::session::{Drive, Session, State};

#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) shared: messaging::Mailbox,
    supply: Supply,
    lender: Lender,
}

impl Mailbox {
    pub(super) fn new(machine: machine::Messages, pool: Pool, limits: Limits) -> Self {
        let lender = Lender::new(limits.offers as usize);
        Self { shared: messaging::Mailbox::new(machine, limits), supply: Supply::new(pool), lender }
    }

    pub(super) const fn supply(&mut self) -> &mut Supply {
        &mut self.supply
    }

    fn parts<'s>(
        &'s mut self,
        requests: &'s mut Requests,
    ) -> (&'s mut messaging::Mailbox, WithMemory<'s>) {
        let Self { shared, supply, lender } = self;
        (shared, WithMemory { requests, supply, lender })
    }
}

impl State<Mailbox> {
    /// Begins an operation.
    ///
    /// # Errors
    /// If the message cannot be sent. Waits if it can be sent later.
    pub(super) fn poll_start(
        &mut self,
        start: (Start, &mut Content<'_>),
        task: (&mut Waiting, &mut Option<Waker>),
    ) -> Poll<Result<Begun, MessageError>> {
        let (mailbox, mut requests) = self.protocol.parts(&mut self.requests);
        mailbox.poll_start(start, task, &mut requests, &mut self.woken)
    }

    /// Continues an operation after its message was copied.
    pub(super) fn copied(&mut self, ticket: Ticket, copied: Copied) {
        let (mailbox, mut requests) = self.protocol.parts(&mut self.requests);
        mailbox.copied(ticket, copied, &mut requests);
    }
}

/// The requests of a connection, with the memory of long messages.
struct WithMemory<'s> {
    requests: &'s mut Requests,
    supply: &'s mut Supply,
    lender: &'s mut Lender,
}

impl messaging::Requests for WithMemory<'_> {
    fn slots(&mut self) -> &mut Slots {
        self.requests.slots()
    }

    fn receive(&mut self, slot: u32, buffer: Buffer) {
        self.requests.receive(slot, buffer);
    }

    fn send(&mut self, slot: u32, buffer: Buffer, length: usize, closing: Option<CloseReason>) {
        self.requests.send(slot, buffer, length, closing);
    }

    fn fail(&mut self) {
        self.requests.fail();
    }
}

impl LongRequests for WithMemory<'_> {
    fn stage(&mut self, length: usize) -> Option<Buffer> {
        self.supply.stage(length)
    }

    fn fetch(&mut self, message: Incoming, source: Remote, length: u32) {
        self.supply.fetch(message, source, length, self.requests);
    }

    fn lend(&mut self, operation: Operation, buffer: Buffer) -> Lent {
        self.lender.lend(operation, buffer, self.supply.blocking(), self.requests)
    }

    fn end_lease(&mut self, operation: Operation) {
        self.lender.end(operation, self.requests);
    }

    fn free(&mut self, memory: Buffer) {
        self.requests.free(memory);
    }
}

impl Protocol<Requests> for Mailbox {
    fn received(&mut self, slot: u32, frame: &[u8]) {
        Protocol::<WithMemory<'_>>::received(&mut self.shared, slot, frame);
    }

    fn sent(&mut self, slot: u32) {
        Protocol::<WithMemory<'_>>::sent(&mut self.shared, slot);
    }

    fn poll_output(&mut self) -> Option<Output> {
        Protocol::<WithMemory<'_>>::poll_output(&mut self.shared)
    }

    fn act(&mut self, output: Output, requests: &mut Requests, woken: &mut Vec<Waker>) {
        let (mailbox, mut requests) = self.parts(requests);
        mailbox.act(output, &mut requests, woken);
    }

    fn lost(&mut self, requests: &mut Requests) {
        self.lender.close(requests);
        self.supply.close();
        let (mailbox, mut requests) = self.parts(requests);
        mailbox.lost(&mut requests);
    }

    fn awaits(&self) -> (bool, bool) {
        Protocol::<WithMemory<'_>>::awaits(&self.shared)
    }

    fn leave(&mut self) -> bool {
        Protocol::<WithMemory<'_>>::leave(&mut self.shared)
    }

    fn await_end(&mut self, waker: &mut Option<Waker>) {
        Protocol::<WithMemory<'_>>::await_end(&mut self.shared, waker);
    }

    fn end(&mut self) -> &mut End {
        Protocol::<WithMemory<'_>>::end(&mut self.shared)
    }
}

impl Drive for Mailbox {
    fn long_completed(&mut self, long: Long, requests: &mut Requests, woken: &mut Vec<Waker>) {
        match long {
            Long::Bound { lease, window } => {
                if let Some((operation, remote)) = self.lender.bound(lease, window, requests) {
                    self.shared.lent(operation, remote);
                }
            }
            Long::Invalidated { lease, window } => {
                if let Some(operation) = self.lender.invalidated(lease, window, requests) {
                    let (mailbox, mut requests) = self.parts(requests);
                    mailbox.lend(operation, &mut requests, woken);
                }
            }
            Long::Fetched { message, buffer } => self.shared.fetched(message, buffer),
        }
    }

    fn enter(&mut self, session: &Weak<Session<Self>>) {
        self.supply.enter(session);
    }
}
