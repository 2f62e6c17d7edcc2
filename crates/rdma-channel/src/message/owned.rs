//! Requests that own their memory until they complete.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};

use rdma_connect::WorkId;
use rdma_mem::{Buffer, GatherList, RemoteMemoryRegion, ScatterList};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkResult};

use crate::channel::Channel;
use crate::ledger::SlotWait;
use crate::ledger::end::without_unwinding;
use crate::ledger::post::NotPosted;
use crate::ledger::queues::Kept;
use crate::ledger::ticket::Ticket;

/// The requests of a channel, each with its buffer and a tag.
///
/// When this value is dropped, the requests end, as at the end of a scope. In a forked child, which does not own the
/// memory, the buffers are leaked.
#[derive(Debug)]
pub(super) struct Owned<T> {
    /// The receives in order of posting.
    receives: VecDeque<(T, WorkId, Buffer)>,
    /// The requests of the send queue in order of posting.
    sends: VecDeque<(T, WorkId, Buffer)>,
    /// The buffers of requests whose posts failed, although the device may have accepted them.
    doubtful: Vec<Buffer>,
    channel: Channel,
}

impl<T> Owned<T> {
    pub(super) const fn new(channel: Channel) -> Self {
        let doubtful = Vec::new();
        Self { receives: VecDeque::new(), sends: VecDeque::new(), doubtful, channel }
    }

    pub(super) const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Posts a receive into a buffer.
    ///
    /// # Errors
    /// Returns the buffer, unless the device may have accepted the request.
    pub(super) fn receive(&mut self, tag: T, mut buffer: Buffer) -> Result<(), Option<Buffer>> {
        let ledger = &self.channel.ledger;
        let mut list = ScatterList::from([buffer.as_slice_mut()]);
        let request = ReceiveWorkRequest::from_list(&mut list);
        // SAFETY: SAFETY.md F27: the buffer stays in `receives` or `doubtful` until the request is over.
        let posted = ledger.post(ledger.only(), request, SlotWait::Now, unsafe { Kept::new() });
        let id = outcome(posted);
        keep(&mut self.receives, &mut self.doubtful, (tag, id, buffer))
    }

    /// Posts a SEND of the first `length` bytes of a buffer. It is solicited, because a peer may wait only for such.
    ///
    /// # Errors
    /// Returns the buffer, unless the device may have accepted the request.
    pub(super) fn send(
        &mut self,
        tag: T,
        buffer: Buffer,
        length: usize,
    ) -> Result<(), Option<Buffer>> {
        let ledger = &self.channel.ledger;
        let Some(bytes) = buffer.get_ref(0, length) else { return Err(Some(buffer)) };
        let list = GatherList::from([bytes]);
        let request = SendWorkRequest::from_list(&list).signaled(true).solicited();
        // SAFETY: SAFETY.md F27: the buffer stays in `sends` or `doubtful` until the request is over.
        let posted = ledger.post(ledger.only(), request, SlotWait::Now, unsafe { Kept::new() });
        let id = outcome(posted);
        keep(&mut self.sends, &mut self.doubtful, (tag, id, buffer))
    }

    /// Posts a READ of the peer's memory into a buffer.
    ///
    /// # Errors
    /// Returns the buffer, unless the device may have accepted the request.
    pub(super) fn read(
        &mut self,
        tag: T,
        mut buffer: Buffer,
        source: RemoteMemoryRegion,
    ) -> Result<(), Option<Buffer>> {
        let ledger = &self.channel.ledger;
        let mut list = ScatterList::from([buffer.as_slice_mut()]);
        let request = ReadWorkRequest::from_list(&mut list, source).signaled(true);
        // SAFETY: SAFETY.md F27: the buffer stays in `sends` or `doubtful` until the request is over.
        let posted = ledger.post(ledger.only(), request, SlotWait::Now, unsafe { Kept::new() });
        let id = outcome(posted);
        keep(&mut self.sends, &mut self.doubtful, (tag, id, buffer))
    }

    /// Returns the next request that is over, as far as completions were polled. Requests of one queue complete in
    /// order.
    pub(super) fn next(&mut self) -> Option<(T, WorkResult, Buffer)> {
        let ledger = &self.channel.ledger;
        [&mut self.receives, &mut self.sends].into_iter().find_map(|queue| {
            let slot = ledger.queues.slot_of(queue.front()?.1.wr_id())?;
            let result = slot.report()?;
            ledger.release(slot);
            queue.pop_front().map(|(tag, _, buffer)| (tag, result, buffer))
        })
    }

    /// Closes the channel, and makes the device flush all requests, without waiting for that. Returns false if the
    /// device refuses.
    pub(super) fn close(&self) -> bool {
        self.channel.ledger.close_as_asked()
    }

    /// Returns true if [`next`](Self::next) has returned all requests.
    pub(super) fn is_empty(&self) -> bool {
        self.receives.is_empty() && self.sends.is_empty()
    }

    /// Destroys the queue pair of a closed channel, and notifies the peer. Returns the buffers of all requests, for the
    /// caller to drop. Does not wait until requests are flushed. Does nothing in a forked child.
    pub(super) fn leave(&mut self) -> Vec<Buffer> {
        let ledger = &mut self.channel.ledger;
        if ledger.check_process().is_err() {
            return Vec::new();
        }
        without_unwinding(|| ledger.destroy());
        ledger.end_closed();
        // Otherwise it is destroyed when the channel is dropped.
        let _ = ledger.close();
        ledger.watch = None;
        let queues = [mem::take(&mut self.receives), mem::take(&mut self.sends)];
        let posted = queues.into_iter().flatten().map(|(_, _, buffer)| buffer);
        posted.chain(mem::take(&mut self.doubtful)).collect()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        without_unwinding(|| self.channel.ledger.settle(|ledger| _ = ledger.close_as_asked()));
        if self.channel.ledger.check_process().is_err() {
            let queues = (mem::take(&mut self.receives), mem::take(&mut self.sends));
            let _ = ManuallyDrop::new((queues, mem::take(&mut self.doubtful)));
        }
    }
}

/// Returns the ID of a posted request. `Err` states whether the device may have accepted the request.
fn outcome(posted: Result<Ticket<'_>, NotPosted<'_>>) -> Result<WorkId, bool> {
    match posted {
        Ok(ticket) => Ok(ticket.keep().0),
        Err(refused) => Err(refused.why().maybe_posted.is_some()),
    }
}

/// Keeps the buffer of a request that the device has accepted, or may have accepted.
fn keep<T>(
    queue: &mut VecDeque<(T, WorkId, Buffer)>,
    doubtful: &mut Vec<Buffer>,
    (tag, id, buffer): (T, Result<WorkId, bool>, Buffer),
) -> Result<(), Option<Buffer>> {
    match id {
        Ok(id) => {
            queue.push_back((tag, id, buffer));
            Ok(())
        }
        Err(true) => {
            doubtful.push(buffer);
            Err(None)
        }
        Err(false) => Err(Some(buffer)),
    }
}
