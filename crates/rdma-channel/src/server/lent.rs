//! The buffers that a server has lent to its device.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use rdma_connect::PeerId;
use rdma_mem::{Buffer, GatherList, InlineElement, ScatterList};
use rdma_qp::{PostError, QueuePair, ReceiveWorkRequest, SendWorkRequest, SharedReceiveQueue};

use crate::ledger::queues::{GENERATION, index};

/// The requests that the device holds, with their buffers.
///
/// Each request has a slot, and its WR ID consists of the slot's index and generation. A duplicate or spurious
/// completion therefore matches no request.
///
/// When this value is dropped, it releases the buffers of shared receives if the shared receive queue can be destroyed.
/// That is possible only after all queue pairs that may have used a receive are destroyed. Sends, and receives that
/// belong to one client, end with the client's queue pair ([`end_of`](Self::end_of)). Buffers of requests that cannot
/// be ended are never released.
#[derive(Debug)]
pub(super) struct Lent {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The number of receives among the requests.
    receives: u32,
    /// The shared receive queue, if the clients share one. It is taken out only in `drop`.
    srq: Option<SharedReceiveQueue>,
}

/// A slot for one request, with its generation.
#[derive(Debug)]
struct Slot {
    /// The WR ID of the current request, or of the next one if the slot is free.
    id: u64,
    request: Option<Request>,
}

/// A request that the device holds.
#[derive(Debug)]
pub(super) enum Request {
    /// A receive for a message from this client. If `None`, it is for a message from any client.
    Receive(Option<PeerId>, Buffer),
    /// A send to this client. If there is no buffer, the bytes were sent inline.
    Send(PeerId, Option<Buffer>),
    /// A send to this client of bytes that the device cannot send inline.
    Copy(PeerId, Buffer),
}

impl Lent {
    pub(super) const fn new(srq: Option<SharedReceiveQueue>) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), receives: 0, srq }
    }

    /// Returns the number of receives that the device holds.
    pub(super) const fn receives(&self) -> u32 {
        self.receives
    }

    /// Posts a receive into a buffer, for a message from this client or, if `None`, from any client that shares the
    /// receive queue.
    ///
    /// # Errors
    /// The error of the post. The buffer has returned to its pool, unless the provider may have accepted the request.
    pub(super) fn post_receive(
        &mut self,
        from: Option<(PeerId, &QueuePair)>,
        buffer: Buffer,
    ) -> Result<(), PostError> {
        let (index, id) = self.put(Request::Receive(from.map(|(peer, _)| peer), buffer));
        self.receives += 1;
        let Some(Request::Receive(_, buffer)) = &mut self.slots[index].request else {
            unreachable!("it was just put there");
        };
        let mut list = ScatterList::from([buffer.as_slice_mut()]);
        let request = ReceiveWorkRequest::from_list(&mut list);
        let posted = match (from, &self.srq) {
            // SAFETY: SAFETY.md F27: the buffer stays in its slot until the receive has completed.
            (Some((_, qp)), _) => unsafe { qp.post_receive(request, id) },
            // SAFETY: SAFETY.md F27: the buffer stays in its slot until the receive has completed.
            (None, Some(srq)) => unsafe { srq.post_receive(request, id) },
            (None, None) => unreachable!("the queue is there until the value is dropped"),
        };
        posted.inspect_err(|error| {
            if error.posted() == 0 {
                drop(self.take(index));
            }
        })
    }

    /// Posts a send of the first `length` bytes of a buffer to a client, or of the whole buffer if it is shorter.
    ///
    /// # Errors
    /// The error of the post, with the buffer. There is no buffer if the provider may have accepted the request.
    pub(super) fn post_send(
        &mut self,
        (peer, qp): (PeerId, &QueuePair),
        buffer: Buffer,
        length: usize,
        immediate: Option<u32>,
    ) -> Result<(), (Option<Buffer>, PostError)> {
        let (index, id) = self.put(Request::Send(peer, Some(buffer)));
        let slot = &self.slots[index];
        let Some(Request::Send(_, Some(buffer))) = &slot.request else {
            unreachable!("it was just put there");
        };
        let list =
            GatherList::from([buffer.get_ref(0, length).unwrap_or_else(|| buffer.as_slice())]);
        let request = match length {
            0 => SendWorkRequest::new(&[]),
            _ => SendWorkRequest::from_list(&list),
        };
        let request = with(request, immediate);
        // SAFETY: SAFETY.md F27: the buffer stays in its slot until the send has completed, and nothing writes to it
        // there.
        let posted = unsafe { qp.post_send(request, id) };
        posted.map_err(|error| match error.posted() {
            0 => match self.take(index) {
                Some(Request::Send(_, buffer)) => (buffer, error),
                _ => (None, error),
            },
            _ => (None, error),
        })
    }

    /// Posts a send of plain bytes to a client.
    ///
    /// # Errors
    /// The error of the post.
    pub(super) fn post_inline(
        &mut self,
        (peer, qp): (PeerId, &QueuePair),
        bytes: InlineElement<'_>,
    ) -> Result<(), PostError> {
        let (index, id) = self.put(Request::Send(peer, None));
        let elements = [bytes];
        let request = with(SendWorkRequest::inline(&elements), None);
        // SAFETY: SAFETY.md F27: the bytes are borrowed until the post returns, and by then the post has copied them.
        let posted = unsafe { qp.post_send(request, id) };
        if posted.is_err_and(|error| error.posted() == 0) {
            self.take(index);
        }
        posted
    }

    /// Posts a send of a whole buffer to a client, for bytes that the device cannot send inline. The buffer returns to
    /// its pool after the send.
    ///
    /// # Errors
    /// The error of the post. The buffer has returned to its pool, unless the provider may have accepted the request.
    pub(super) fn post_copy(
        &mut self,
        (peer, qp): (PeerId, &QueuePair),
        buffer: Buffer,
    ) -> Result<(), PostError> {
        let (index, id) = self.put(Request::Copy(peer, buffer));
        let Some(Request::Copy(_, buffer)) = &self.slots[index].request else {
            unreachable!("it was just put there");
        };
        let list = GatherList::from([buffer.as_slice()]);
        let request = with(SendWorkRequest::from_list(&list), None);
        // SAFETY: SAFETY.md F27: the buffer stays in its slot until the send has completed, and nothing writes to it
        // there.
        let posted = unsafe { qp.post_send(request, id) };
        if posted.is_err_and(|error| error.posted() == 0) {
            self.take(index);
        }
        posted
    }

    /// Takes out the request of a completion that was just polled from this server's completion queue. The device no
    /// longer holds the request. `None` if the completion matches no request.
    pub(super) fn complete(&mut self, wr_id: u64) -> Option<Request> {
        let index = index(wr_id);
        if self.slots.get(index)?.id == wr_id { self.take(index) } else { None }
    }

    /// Takes back a client's requests after the client's queue pair has been destroyed. These are the sends to the
    /// client, and the receives posted on its queue pair. The buffers of the receives are added to `spare`.
    pub(super) fn end_of(&mut self, peer: PeerId, spare: &mut Vec<Buffer>) {
        for index in 0..self.slots.len() {
            let (Some(Request::Send(of, _) | Request::Copy(of, _))
            | Some(Request::Receive(Some(of), _))) = &self.slots[index].request
            else {
                continue;
            };
            if *of == peer
                && let Some(Request::Receive(_, buffer)) = self.take(index)
            {
                spare.push(buffer);
            }
        }
    }

    /// Puts a request into a slot. Returns the slot's index and the WR ID.
    fn put(&mut self, request: Request) -> (usize, u64) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len();
            self.slots.push(Slot { id: index as u64, request: None });
            index
        });
        let slot = &mut self.slots[index];
        debug_assert!(slot.request.is_none(), "a free slot is empty");
        slot.request = Some(request);
        (index, slot.id)
    }

    /// Takes a request out of its slot. After that, the slot is free and has a new WR ID.
    fn take(&mut self, index: usize) -> Option<Request> {
        let slot = self.slots.get_mut(index)?;
        let request = slot.request.take()?;
        slot.id = slot.id.wrapping_add(GENERATION);
        self.free.push(index);
        self.receives -= u32::from(matches!(request, Request::Receive(..)));
        Some(request)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let is_closed = self.srq.take().is_some_and(|srq| srq.close().is_ok());
        for slot in &mut self.slots {
            let request = ManuallyDrop::new(slot.request.take());
            // The device may still use the other buffers, so they are never reused.
            if is_closed && matches!(*request, Some(Request::Receive(None, _))) {
                drop(ManuallyDrop::into_inner(request));
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

#[cfg(test)]
mod tests {
    use rdma_mem::BufferPool;
    use rdma_qp::CompletionQueue;

    use super::*;

    /// Otherwise, the memory of the slots would grow while a program repeats a refused send.
    #[test]
    #[cfg_attr(miri, ignore = "the software device copies in assembly")]
    fn a_refused_send_frees_its_slot() {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let cq = CompletionQueue::create(pd.context(), 256).unwrap();
        let prepared = QueuePair::builder(&pd).send_cq(&cq).recv_cq(&cq).build().unwrap();
        let endpoint = prepared.endpoint();
        let qp = prepared.handshake(endpoint).unwrap();
        let (mut lent, to) = (Lent::new(None), (PeerId::new(0, 0), &qp));
        let byte = || InlineElement::new_checked(b"x").unwrap();
        let mut posted = 0;
        while lent.post_inline(to, byte()).is_ok() {
            posted += 1;
        }
        let pool = BufferPool::new(&pd);
        lent.post_copy(to, pool.allocate(8).unwrap()).unwrap_err();
        let (refused, _) = lent.post_send(to, pool.allocate(8).unwrap(), 8, None).unwrap_err();
        assert!(refused.is_some());
        assert_eq!(lent.slots.iter().filter(|slot| slot.request.is_some()).count(), posted);
    }
}
