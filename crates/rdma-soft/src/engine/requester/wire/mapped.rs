//! Requests that the requester executes itself, on memory of another process that granted this.
//!
//! Such a request takes no sequence number and no packet. It is executed only when the far end has executed everything
//! that the queue pair has sent before. So requests keep their order, and each completes before the next begins.
//!
//! A long WRITE with immediate data is [placed](Placed): only its last packet is sent. The far end checks the whole
//! message when that packet arrives, and executes the packet like any other.

use std::sync::Arc;

use rdma_proto::MAX_MESSAGE_BYTES;
use rdma_types::Mtu;

use crate::engine::operation::{Opcode, Operation};
use crate::engine::requester::queue::SendQueue;
use crate::engine::wire::Word;
use crate::engine::wire::grant::Grant;
use crate::memory::copy::{AtomicWord, Reach, Segment};

/// The grants of a connection, and the requests that they concern. Requests have the protocol's numbers.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// The carrier's number when the grants were last read.
    seen: u32,
    pub(super) grants: Vec<Arc<dyn Grant>>,
    /// The number of bytes of the next request that were copied.
    pub(super) copied: u64,
    /// The number of the first request that waits until the requests before it are done, because it will be executed
    /// without packets.
    pub(super) held: Option<u32>,
    /// The request that was placed last, until it is done.
    pub(super) placed: Option<Placed>,
    /// All requests before this one were checked for a grant.
    checked: u32,
    /// One more than the number of the last checked request that no grant covers.
    uncovered: u32,
}

/// A WRITE with immediate data whose bytes were copied without packets, except those of its last packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    /// The number of the request.
    pub(crate) request: u32,
    /// The number of bytes that were copied.
    pub(crate) bytes: u32,
    /// Whether the last packet can no longer be sent again, because the route has changed.
    pub(crate) is_stranded: bool,
}

/// Returns the number of bytes of a request that need no packet. For a WRITE with immediate data, these are the bytes
/// before the last packet.
pub(super) fn bytes_without_packets(opcode: Opcode, length: u64, mtu: Mtu) -> u64 {
    match opcode {
        Opcode::WriteWithImm => length.saturating_sub(1) & !(u64::from(mtu.bytes()) - 1),
        _ => length,
    }
}

/// The shortest WRITE with immediate data that is placed. Shorter ones would save few packets, and each waits until those
/// before it are executed.
const LEAST_PLACED: u64 = 8 << 10;

impl Mapped {
    /// Forgets everything, because the queue pair is in error, or its peer has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Reads the grants again if any has arrived or become invalid.
    pub(super) fn update(&mut self, word: &Word, head: u32) {
        let granted = word.carrier().granted();
        if granted != self.seen {
            self.seen = granted;
            self.grants = word.carrier().grants(word.key);
            (self.checked, self.uncovered) = (head, head);
        }
    }

    /// Checks which of the requests in flight, from `head` to before `begun`, no grant covers.
    pub(super) fn check(&mut self, queue: &SendQueue, head: u32, begun: u32) {
        for n in [&mut self.checked, &mut self.uncovered] {
            if is_before(*n, head) {
                *n = head;
            }
        }
        while self.checked != begun {
            let is_covered = self.covers(queue, self.checked.wrapping_sub(head));
            self.checked = self.checked.wrapping_add(1);
            if !is_covered {
                self.uncovered = self.checked;
            }
        }
    }

    /// Returns true if a grant covers the request at this position in the queue.
    fn covers(&self, queue: &SendQueue, at: u32) -> bool {
        queue.at(at as usize).is_some_and(|(request, payload)| {
            self.find(&request.operation, payload.length()).is_some()
        })
    }

    /// Makes the request after a placed one wait until the placed one is done, if a grant covers it.
    pub(super) fn hold_after(&mut self, queue: &SendQueue, head: u32, placed: u32) {
        let next = placed.wrapping_add(1);
        self.held = self.covers(queue, next.wrapping_sub(head)).then_some(next);
    }

    /// Returns true if grants cover all checked requests from `head` on.
    pub(super) fn covers_all_since(&self, head: u32) -> bool {
        self.uncovered == head
    }

    /// Returns the grant that covers a request, if any, and the request's remote memory.
    #[inline(always)]
    pub(super) fn find(&self, operation: &Operation, length: u64) -> Option<(&dyn Grant, Segment)> {
        let is_one_sided = match operation.opcode {
            Opcode::Write | Opcode::Read => length > 0,
            Opcode::WriteWithImm => (LEAST_PLACED..=MAX_MESSAGE_BYTES.into()).contains(&length),
            opcode => opcode.is_atomic(),
        };
        let grant = self.grants.iter().find(|grant| grant.key() == operation.rkey)?;
        let access = operation.opcode.remote_access();
        let found = grant.locate(operation.remote_address, length, access)?;
        let is_word =
            || operation.remote_address.is_multiple_of(8) && AtomicWord::at(found).is_some();
        let fits = is_one_sided && (!operation.opcode.is_atomic() || is_word());
        fits.then_some((&**grant, found))
    }

    /// Forgets the grants that are no longer valid.
    #[cold]
    pub(super) fn drop_invalid(&mut self) {
        self.grants.retain(|grant| grant.is_valid());
    }
}

/// Returns true if a request has a lower number than the oldest one in the queue.
pub(super) fn is_before(n: u32, head: u32) -> bool {
    n.wrapping_sub(head).cast_signed() < 0
}

/// A part of a request that is executed within one visit.
pub(super) struct Part<'a> {
    pub(super) operation: &'a Operation,
    pub(super) remote: Segment,
    pub(super) reach: Reach,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The result of executing a part.
pub(super) enum Outcome {
    Executed,
    /// Nothing was executed for good: the grant is no longer valid, or local memory is gone.
    Not,
    /// An atomic was executed, but its result could not be stored.
    Lost,
}

impl Part<'_> {
    #[inline(always)]
    pub(super) fn execute(&self, local: &[Segment]) -> Outcome {
        let Self { operation, remote, reach, from, to } = *self;
        let done = match operation.opcode {
            Opcode::Write | Opcode::WriteWithImm => reach.transfer(local, &[remote], from, to),
            Opcode::Read => reach.transfer(&[remote], local, from, to),
            opcode => {
                let Some(word) = AtomicWord::at(remote) else { return Outcome::Not };
                let before = match opcode {
                    Opcode::CompareAndSwap => {
                        word.compare_and_swap(operation.operand, operation.swap)
                    }
                    _ => word.fetch_and_add(operation.operand),
                };
                if reach.deliver(before, local).is_err() {
                    return Outcome::Lost;
                }
                Ok(())
            }
        };
        if done.is_ok() { Outcome::Executed } else { Outcome::Not }
    }
}
