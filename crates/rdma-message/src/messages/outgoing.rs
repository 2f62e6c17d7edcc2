//! The pending operations, and the order in which they are sent.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::error::OperationError;
use crate::frame::{Remote, Role};
use crate::output::Operation;

/// The next step of an operation in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The way of sending is not decided.
    New,
    /// The driver is making the message readable.
    Lending,
    /// The offer can be sent.
    Lent(Remote),
    /// Parts are sent.
    Parts,
    /// The cancel frame of a call is to be sent.
    Cancel,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) role: Role,
    pub(super) length: u32,
    /// The number of bytes in the parts that were sent.
    pub(super) sent: u32,
    pub(super) stage: Stage,
    /// Whether a frame was sent.
    pub(super) has_begun: bool,
    /// Whether the operation is in the queue.
    pub(super) is_queued: bool,
    /// Whether it may not be sent yet.
    pub(super) is_held: bool,
    /// Whether its memory counts as offered.
    pub(super) is_offered: bool,
    /// Whether the peer is to answer the request. A cancelled request is answered too.
    pub(super) awaits_answer: bool,
    /// The number of SENDs that have not completed.
    pub(super) in_flight: u32,
    /// The result, once nothing is missing except completions of the device, the end of the offer,
    /// and the answer to a cancelled call.
    pub(super) result: Option<Result<(), OperationError>>,
}

impl Outgoing {
    pub(super) const fn new(role: Role, length: u32) -> Self {
        Self {
            role,
            length,
            sent: 0,
            stage: Stage::New,
            has_begun: false,
            is_queued: true,
            is_held: false,
            is_offered: false,
            awaits_answer: false,
            in_flight: 0,
            result: None,
        }
    }

    /// Returns true if nothing refers to the operation any longer.
    pub(super) const fn is_over(&self) -> bool {
        let is_in_use = self.is_queued || self.is_offered || self.in_flight > 0;
        self.result.is_some() && !is_in_use && !self.awaits_answer
    }

    /// Returns true if the operation has a result, and waits for completions of SENDs.
    const fn awaits_sent(&self) -> bool {
        self.result.is_some() && self.in_flight > 0
    }

    /// Returns the result of an operation whose connection has ended.
    pub(super) fn result_at_end(&self) -> Result<(), OperationError> {
        let default =
            if self.has_begun { OperationError::Unknown } else { OperationError::NotSent };
        match self.result {
            // The peer's device may lack some of the message.
            Some(Ok(())) if self.is_queued || self.is_offered || self.in_flight > 0 => {
                match self.role {
                    // The reply proves that the request has arrived.
                    Role::Request(_) => Ok(()),
                    _ => Err(default),
                }
            }
            Some(result) => result,
            None => Err(default),
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    operation: Option<Outgoing>,
}

/// The operations.
#[derive(Debug, Default)]
pub(super) struct Operations {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The operations with frames to send.
    queue: VecDeque<u32>,
    /// The offers that are not over, in the order of their sending.
    offers: VecDeque<u32>,
    /// The number of operations and of bytes that count as offered.
    pub(super) offered: u32,
    pub(super) offered_bytes: u64,
    live: u32,
    /// The number of operations that have a result, and wait for completions of SENDs.
    awaits_sent: u32,
}

impl Operations {
    /// Returns the number of operations.
    pub(super) const fn live(&self) -> u32 {
        self.live
    }

    /// Adds an operation to the end of the queue.
    pub(super) fn add(&mut self, outgoing: Outgoing) -> Option<Operation> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries.push(Entry::default());
                u32::try_from(self.entries.len().checked_sub(1)?).ok()?
            }
        };
        let entry = self.entries.get_mut(usize::try_from(index).ok()?)?;
        entry.operation = Some(outgoing);
        self.live = self.live.saturating_add(1);
        self.queue.push_back(index);
        Some(Operation { index, generation: entry.generation })
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries.get(usize::try_from(index).ok()?)
    }

    pub(super) fn get(&mut self, index: u32) -> Option<&mut Outgoing> {
        self.entries.get_mut(usize::try_from(index).ok()?)?.operation.as_mut()
    }

    /// Changes the result or the number of SENDs of an operation.
    pub(super) fn change(&mut self, index: u32, change: impl FnOnce(&mut Outgoing)) {
        let Some(operation) = self.get(index) else { return };
        let before = operation.awaits_sent();
        change(operation);
        let after = operation.awaits_sent();
        self.awaits_sent = self.awaits_sent.saturating_add(after.into());
        self.awaits_sent = self.awaits_sent.saturating_sub(before.into());
    }

    /// Returns true if an operation has a result, and waits for completions of SENDs.
    pub(super) const fn await_sent(&self) -> bool {
        self.awaits_sent > 0
    }

    /// Returns the operation unless it has ended.
    pub(super) fn find(&mut self, operation: Operation) -> Option<&mut Outgoing> {
        let entry = self.entries.get_mut(usize::try_from(operation.index).ok()?)?;
        entry.operation.as_mut().filter(|_| entry.generation == operation.generation)
    }

    /// Returns the name of the operation at an index.
    pub(super) fn name(&self, index: u32) -> Option<Operation> {
        Some(Operation { index, generation: self.entry(index)?.generation })
    }

    /// Returns the index of the operation that sends next.
    pub(super) fn front(&self) -> Option<u32> {
        self.queue.front().copied()
    }

    /// Removes the operation that has sent all its frames.
    pub(super) fn pop(&mut self) {
        if let Some(index) = self.queue.pop_front()
            && let Some(operation) = self.get(index)
        {
            operation.is_queued = false;
        }
    }

    /// Removes an operation from any place in the queue.
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(at) = self.queue.iter().position(|&queued| queued == index) {
            self.queue.remove(at);
            if let Some(operation) = self.get(index) {
                operation.is_queued = false;
            }
        }
    }

    /// Adds an operation to the queue again, to send a cancel frame.
    pub(super) fn queue_cancel(&mut self, index: u32) {
        if let Some(operation) = self.get(index) {
            (operation.stage, operation.is_queued) = (Stage::Cancel, true);
            self.queue.push_back(index);
        }
    }

    /// Counts the message of an operation as offered.
    pub(super) fn begin_offer(&mut self, index: u32) {
        if let Some(operation) = self.get(index) {
            operation.is_offered = true;
            let length = operation.length;
            self.offered = self.offered.saturating_add(1);
            self.offered_bytes = self.offered_bytes.saturating_add(length.into());
        }
    }

    /// Records that the offer was sent.
    pub(super) fn offer_sent(&mut self, index: u32) {
        self.offers.push_back(index);
    }

    /// Ends the oldest offer. Returns its operation.
    pub(super) fn offer_over(&mut self) -> Option<u32> {
        let index = self.offers.pop_front()?;
        self.end_offer(index);
        Some(index)
    }

    /// Stops counting the message of an operation as offered.
    pub(super) fn end_offer(&mut self, index: u32) {
        if let Some(operation) = self.get(index).filter(|operation| operation.is_offered) {
            operation.is_offered = false;
            let length = operation.length;
            self.offered = self.offered.saturating_sub(1);
            self.offered_bytes = self.offered_bytes.saturating_sub(length.into());
        }
    }

    /// Removes an operation that is over, and returns it with its name.
    pub(super) fn settle(&mut self, index: u32) -> Option<(Operation, Outgoing)> {
        self.get(index).filter(|operation| operation.is_over())?;
        self.end(index)
    }

    /// Returns the number of indices that were used.
    pub(super) fn indices(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Removes the operation at an index, and returns it with its name.
    pub(super) fn end(&mut self, index: u32) -> Option<(Operation, Outgoing)> {
        let name = self.name(index)?;
        let entry = self.entries.get_mut(usize::try_from(index).ok()?)?;
        let outgoing = entry.operation.take()?;
        self.awaits_sent = self.awaits_sent.saturating_sub(outgoing.awaits_sent().into());
        entry.generation = entry.generation.wrapping_add(1);
        self.live = self.live.saturating_sub(1);
        self.free.push(index);
        Some((name, outgoing))
    }
}
