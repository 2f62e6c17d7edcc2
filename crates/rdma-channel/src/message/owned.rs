//! Requests that own their memory until they complete.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;

use rdma_connect::messaging::Window;
use rdma_connect::{Operation, WorkId};
use rdma_mem::{AccessFlags, Buffer, GatherList, RemoteMemoryRegion, ScatterList};
use rdma_qp::{
    BindWindow, LocalInvalidate, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkResult,
    WriteWorkRequest,
};

use crate::channel::Channel;
use crate::ledger::SlotWait;
use crate::ledger::end::without_unwinding;
use crate::ledger::post::NotPosted;
use crate::ledger::queues::Kept;
use crate::ledger::ticket::Ticket;

/// The memory of a request.
#[derive(Debug)]
pub(super) enum Memory {
    Buffer(Buffer),
    /// The window that the request binds or invalidates.
    Window(Window<Buffer>),
}

impl From<Buffer> for Memory {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<Window<Buffer>> for Memory {
    fn from(window: Window<Buffer>) -> Self {
        Self::Window(window)
    }
}

/// The requests of a channel, each with its memory and a tag.
///
/// When this value is dropped, the requests end, as at the end of a scope. In a forked child, which does not own the
/// memory, the memory is leaked.
#[derive(Debug)]
pub(super) struct Owned<T> {
    /// The receives in order of posting.
    receives: VecDeque<(T, WorkId, Memory)>,
    /// The requests of the send queue in order of posting.
    sends: VecDeque<(T, WorkId, Memory)>,
    /// The memory of requests whose posts failed, although the device may have accepted them.
    doubtful: Vec<Memory>,
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

    /// Posts a WRITE of a part of a buffer to the peer's memory.
    ///
    /// # Errors
    /// Returns the buffer, unless the device may have accepted the request.
    pub(super) fn write(
        &mut self,
        tag: T,
        buffer: Buffer,
        part: &Range<usize>,
        target: RemoteMemoryRegion,
    ) -> Result<(), Option<Buffer>> {
        let ledger = &self.channel.ledger;
        let Some(bytes) = buffer.get_ref(part.start, part.len()) else { return Err(Some(buffer)) };
        let list = GatherList::from([bytes]);
        let request = WriteWorkRequest::from_list(&list, target).signaled(true);
        // SAFETY: SAFETY.md F27: the buffer stays in `sends` or `doubtful` until the request is over.
        let posted = ledger.post(ledger.only(), request, SlotWait::Now, unsafe { Kept::new() });
        let id = outcome(posted);
        keep(&mut self.sends, &mut self.doubtful, (tag, id, buffer))
    }

    /// Returns true if requests of the send queue are not over.
    pub(super) fn is_sending(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Posts the bind of a window that is not bound, to this range of its memory.
    ///
    /// # Errors
    /// Returns the window, which is not bound, unless the device may have accepted the request.
    pub(super) fn bind(
        &mut self,
        tag: T,
        mut window: Window<Buffer>,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<(), Option<Window<Buffer>>> {
        let ledger = &self.channel.ledger;
        let Ok(request) = BindWindow::new(window.get_mut(), range, access) else {
            return Err(Some(window));
        };
        // SAFETY: SAFETY.md F27: the window stays in `sends` or `doubtful` until the request is over.
        let posted = ledger.post(ledger.only(), request, SlotWait::Now, unsafe { Kept::new() });
        let id = outcome(posted);
        if matches!(id, Err(false)) {
            // SAFETY: SAFETY.md F27: posting the bind has failed.
            unsafe { window.get_mut().never_bound() };
        }
        keep(&mut self.sends, &mut self.doubtful, (tag, id, window))
    }

    /// Posts the invalidation of a window that this channel has bound.
    ///
    /// # Errors
    /// Returns the window, unless the device may have accepted the request.
    pub(super) fn invalidate(
        &mut self,
        tag: T,
        window: Window<Buffer>,
    ) -> Result<(), Option<Window<Buffer>>> {
        let Some((key, _)) = window.remote() else { return Err(Some(window)) };
        let (ledger, request) = (&self.channel.ledger, LocalInvalidate::new(key));
        // SAFETY: SAFETY.md F27: the request has no memory.
        let posted = ledger.post(ledger.only(), request, SlotWait::Now, unsafe { Kept::new() });
        let id = outcome(posted);
        keep(&mut self.sends, &mut self.doubtful, (tag, id, window))
    }

    /// Returns the next request that is over, as far as completions were polled. Requests of one queue complete in
    /// order. A window that was invalidated is no longer bound.
    pub(super) fn next(&mut self) -> Option<(T, WorkResult, Memory)> {
        let ledger = &self.channel.ledger;
        [&mut self.receives, &mut self.sends].into_iter().find_map(|queue| {
            let slot = ledger.queues.slot_of(queue.front()?.1.wr_id())?;
            let result = slot.report()?;
            let is_invalidated = slot.operation.get() == Operation::Invalidation && result.is_ok();
            ledger.release(slot);
            let (tag, _, mut memory) = queue.pop_front()?;
            if let Memory::Window(window) = &mut memory
                && is_invalidated
            {
                // SAFETY: SAFETY.md F27: this is the window whose key the request has invalidated. Its bind, of the same
                // queue pair, had completed before.
                unsafe { window.get_mut().unbound() };
            }
            Some((tag, result, memory))
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

    /// Destroys the queue pair of a closed channel, and notifies the peer. Returns the memory of all requests, for the
    /// caller to drop. Does not wait until requests are flushed. Does nothing in a forked child.
    pub(super) fn leave(&mut self) -> Vec<Memory> {
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
        let posted = queues.into_iter().flatten().map(|(_, _, memory)| memory);
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

/// Keeps the memory of a request that the device has accepted, or may have accepted.
fn keep<T, M: Into<Memory>>(
    queue: &mut VecDeque<(T, WorkId, Memory)>,
    doubtful: &mut Vec<Memory>,
    (tag, id, memory): (T, Result<WorkId, bool>, M),
) -> Result<(), Option<M>> {
    match id {
        Ok(id) => {
            queue.push_back((tag, id, memory.into()));
            Ok(())
        }
        Err(true) => {
            doubtful.push(memory.into());
            Err(None)
        }
        Err(false) => Err(Some(memory)),
    }
}
