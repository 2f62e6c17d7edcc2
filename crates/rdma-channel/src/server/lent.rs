//! The buffers that a server has lent to its device.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use rdma_connect::PeerId;
use rdma_mem::{Buffer, GatherList, InlineElement, ScatterList};
use rdma_qp::{PostError, QueuePair, ReceiveWorkRequest, SendWorkRequest, SharedReceiveQueue};

use crate::ledger::queues::{GENERATION, index};

/// The requests that the device has, and their buffers.
///
/// Each has a slot, whose index and generation are its WR ID: a completion that comes twice, or of nothing, finds no
/// request. What is left in the slots when the value is dropped is given back if the shared receive queue can be
/// destroyed, which is after all queue pairs that may have taken a receive; a send, and a receive of a client's own, goes
/// with its queue pair ([`end_of`](Self::end_of)). What cannot be ended is never given back.
#[derive(Debug)]
pub(super) struct Lent {
    slots: Vec<LoanSlot>,
    free: Vec<usize>,
    /// How many are receives.
    receives: u32,
    /// Of clients that share one. Taken in `drop` alone.
    srq: Option<SharedReceiveQueue>,
}

/// A slot for one request, and its generation.
#[derive(Debug)]
struct LoanSlot {
    /// The WR ID of the request that is there, or of the next one.
    id: u64,
    loan: Option<Loan>,
}

/// A request that the device has.
#[derive(Debug)]
pub(super) enum Loan {
    /// Of this client, or of whichever the message comes from.
    Receive(Option<PeerId>, Buffer),
    /// To this client. Without a buffer, its bytes were inline.
    Send(PeerId, Option<Buffer>),
    /// To this client, of bytes that were to be inline.
    Copy(PeerId, Buffer),
}

impl Lent {
    pub(super) const fn new(srq: Option<SharedReceiveQueue>) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), receives: 0, srq }
    }

    /// How many receives the device has.
    pub(super) const fn receives(&self) -> u32 {
        self.receives
    }

    /// Has the device receive a message into a buffer: of this client, or of any by the shared receive queue.
    ///
    /// # Errors
    /// That of the post. The buffer is back in its pool, unless the provider does not say whether it has it.
    pub(super) fn post_receive(
        &mut self,
        from: Option<(PeerId, &QueuePair)>,
        buffer: Buffer,
    ) -> Result<(), PostError> {
        let (index, id) = self.put(Loan::Receive(from.map(|(peer, _)| peer), buffer));
        self.receives += 1;
        let Some(Loan::Receive(_, buffer)) = &mut self.slots[index].loan else {
            unreachable!("it was just put there");
        };
        let mut list = ScatterList::from([buffer.as_slice_mut()]);
        let request = ReceiveWorkRequest::from_list(&mut list);
        let posted = match (from, &self.srq) {
            // SAFETY: SAFETY.md F27: the buffer stays in its slot until the receive is over.
            (Some((_, qp)), _) => unsafe { qp.post_receive(request, id) },
            // SAFETY: the same.
            (None, Some(srq)) => unsafe { srq.post_receive(request, id) },
            (None, None) => unreachable!("the queue is there until the value is dropped"),
        };
        posted.inspect_err(|error| {
            if error.posted() == 0 {
                drop(self.take(index));
            }
        })
    }

    /// Has the device send the first `length` bytes of a buffer to a client; if it has less, all.
    ///
    /// # Errors
    /// With the buffer, unless the provider does not say whether it has it.
    pub(super) fn post_send(
        &mut self,
        (peer, qp): (PeerId, &QueuePair),
        buffer: Buffer,
        length: usize,
        immediate: Option<u32>,
    ) -> Result<(), (Option<Buffer>, PostError)> {
        let (index, id) = self.put(Loan::Send(peer, Some(buffer)));
        let slot = &self.slots[index];
        let Some(Loan::Send(_, Some(buffer))) = &slot.loan else {
            unreachable!("it was just put there");
        };
        let list =
            GatherList::from([buffer.get_ref(0, length).unwrap_or_else(|| buffer.as_slice())]);
        let request = match length {
            0 => SendWorkRequest::new(&[]),
            _ => SendWorkRequest::from_list(&list),
        };
        let request = with(request, immediate);
        // SAFETY: SAFETY.md F27: the buffer stays in its slot until the send is over, and nobody writes it there.
        let posted = unsafe { qp.post_send(request, id) };
        posted.map_err(|error| match error.posted() {
            0 => match self.take(index) {
                Some(Loan::Send(_, buffer)) => (buffer, error),
                _ => (None, error),
            },
            _ => (None, error),
        })
    }

    /// Has the device send plain bytes to a client.
    ///
    /// # Errors
    /// Those of the post.
    pub(super) fn post_inline(
        &mut self,
        (peer, qp): (PeerId, &QueuePair),
        bytes: InlineElement<'_>,
    ) -> Result<(), PostError> {
        let (index, id) = self.put(Loan::Send(peer, None));
        let elements = [bytes];
        let request = with(SendWorkRequest::inline(&elements), None);
        // SAFETY: SAFETY.md F27: the bytes are borrowed until the post returns, which has copied them.
        let posted = unsafe { qp.post_send(request, id) };
        if posted.is_err_and(|error| error.posted() == 0) {
            self.take(index);
        }
        posted
    }

    /// Has the device send bytes to a client that it does not take inline: all of the buffer, which goes back to its pool.
    ///
    /// # Errors
    /// That of the post. The buffer is back in its pool, unless the provider does not say whether it has it.
    pub(super) fn post_copy(
        &mut self,
        (peer, qp): (PeerId, &QueuePair),
        buffer: Buffer,
    ) -> Result<(), PostError> {
        let (index, id) = self.put(Loan::Copy(peer, buffer));
        let Some(Loan::Copy(_, buffer)) = &self.slots[index].loan else {
            unreachable!("it was just put there");
        };
        let list = GatherList::from([buffer.as_slice()]);
        let request = with(SendWorkRequest::from_list(&list), None);
        // SAFETY: SAFETY.md F27: the buffer stays in its slot until the send is over, and nobody writes it there.
        let posted = unsafe { qp.post_send(request, id) };
        if posted.is_err_and(|error| error.posted() == 0) {
            self.take(index);
        }
        posted
    }

    /// The request of a completion that was just polled from the completion queue of this server. The device has it no
    /// more. `None` if there is no such request.
    pub(super) fn complete(&mut self, wr_id: u64) -> Option<Loan> {
        let index = index(wr_id);
        if self.slots.get(index)?.id == wr_id { self.take(index) } else { None }
    }

    /// Takes back what a client had whose queue pair was destroyed: the sends to it, and the receives of its own, whose
    /// buffers are added to `spare`.
    pub(super) fn end_of(&mut self, peer: PeerId, spare: &mut Vec<Buffer>) {
        for index in 0..self.slots.len() {
            let (Some(Loan::Send(of, _) | Loan::Copy(of, _)) | Some(Loan::Receive(Some(of), _))) =
                &self.slots[index].loan
            else {
                continue;
            };
            if *of == peer
                && let Some(Loan::Receive(_, buffer)) = self.take(index)
            {
                spare.push(buffer);
            }
        }
    }

    /// Puts a request into a slot, and returns the slot's index and the WR ID.
    fn put(&mut self, loan: Loan) -> (usize, u64) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len();
            self.slots.push(LoanSlot { id: index as u64, loan: None });
            index
        });
        let slot = &mut self.slots[index];
        debug_assert!(slot.loan.is_none(), "a free slot is empty");
        slot.loan = Some(loan);
        (index, slot.id)
    }

    /// Takes a request out of its slot, which is free after it, with another WR ID.
    fn take(&mut self, index: usize) -> Option<Loan> {
        let slot = self.slots.get_mut(index)?;
        let loan = slot.loan.take()?;
        slot.id = slot.id.wrapping_add(GENERATION);
        self.free.push(index);
        self.receives -= u32::from(matches!(loan, Loan::Receive(..)));
        Some(loan)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let is_closed = self.srq.take().is_some_and(|srq| srq.close().is_ok());
        for slot in &mut self.slots {
            let loan = ManuallyDrop::new(slot.loan.take());
            // Others the device may have still: they are never used again.
            if is_closed && matches!(*loan, Some(Loan::Receive(None, _))) {
                drop(ManuallyDrop::into_inner(loan));
            }
        }
    }
}

fn with<'wr, 'data>(
    request: SendWorkRequest<'wr, 'data>,
    immediate: Option<u32>,
) -> SendWorkRequest<'wr, 'data> {
    let request = request.signaled(true);
    match immediate {
        Some(immediate) => request.with_immediate(immediate),
        None => request,
    }
}
