//! Posting requests, each into a slot of the ledger.

use std::cell::Cell;
use std::fmt;

use rdma_connect::{Operation, RefusedWork, TransportError, WorkId};
use rdma_qp::PostError;

use super::queues::{Connection, InBatch, Kept, Queue, RequestSlot};
use super::state::SlotState;
use super::ticket::Ticket;
use super::{Ledger, SlotWait, closed, run_cold};
use crate::deadline::BatchDeadline;
use crate::request::Post;

/// A request that was not posted. The ledger holds the reason, so that the result of a post is as small as a pointer
/// and stays in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotPosted<'l>(&'l Ledger);

/// The reason why a request was not posted.
#[derive(Debug)]
pub(crate) struct PostFailure {
    pub(crate) error: TransportError,
    /// The ID of the request if the device may have accepted it. Its slot then stays in flight, as if the post had
    /// succeeded.
    pub(crate) maybe_posted: Option<WorkId>,
}

/// The reason for the last failed post, until it is read.
#[derive(Default)]
pub(super) struct LastPostFailure(Cell<Option<PostFailure>>);

impl fmt::Debug for LastPostFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastPostFailure").finish_non_exhaustive()
    }
}

impl NotPosted<'_> {
    /// Returns the reason. It can be read only once, before anything else is posted.
    #[cold]
    #[inline(never)]
    pub(crate) fn why(self) -> PostFailure {
        self.0.take_refusal()
    }
}

impl From<NotPosted<'_>> for TransportError {
    #[cold]
    fn from(refused: NotPosted<'_>) -> Self {
        refused.why().error
    }
}

impl Ledger {
    /// Records why a request was not posted.
    #[cold]
    pub(crate) fn refuse(
        &self,
        error: TransportError,
        maybe_posted: Option<WorkId>,
    ) -> NotPosted<'_> {
        self.refusal.0.set(Some(PostFailure { error, maybe_posted }));
        NotPosted(self)
    }

    /// Takes the reason for the last failed post.
    pub(crate) fn take_refusal(&self) -> PostFailure {
        let nothing = || PostFailure { error: TransportError::WouldBlock, maybe_posted: None };
        self.refusal.0.take().unwrap_or_else(nothing)
    }
}

impl Ledger {
    /// Posts a request. Its slot is updated when the request completes. Even after an error, the device may have
    /// accepted the request; `PostFailure::maybe_posted` shows that.
    #[inline(always)]
    pub(crate) fn post<'l, 'data: 'kept, 'kept, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        request: W,
        wait: SlotWait,
        kept: Kept<'kept>,
    ) -> Result<Ticket<'l>, NotPosted<'l>> {
        let posted = self.post_slot(connection, request, wait, kept);
        posted.map(|slot| Ticket::new(self, slot))
    }

    /// Like [`post`](Self::post), but returns the slot. The caller must create a ticket for it.
    #[inline(always)]
    pub(crate) fn post_slot<'l, 'data: 'kept, 'kept, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        request: W,
        wait: SlotWait,
        kept: Kept<'kept>,
    ) -> Result<&'l RequestSlot, NotPosted<'l>> {
        let (queue, operation) = (connection.queue(W::OPERATION), W::OPERATION);
        let signaled = request.is_signaled();
        let slot = if (signaled || !connection.has_to_signal())
            && let Some((slot, qp)) = connection.next_slot(queue)
        {
            if let Err(error) = kept.post(qp, request, slot.id()) {
                return Err(run_cold(move || {
                    self.refused(connection, slot, operation, signaled, error)
                }));
            }
            queue.advance(slot);
            if !signaled {
                let state = connection.link(slot, operation, false);
                self.posted(slot, operation, state);
            } else if !operation.is_of_send_queue() || connection.unsignaled.get() == 0 {
                self.posted(slot, operation, SlotState::IN_FLIGHT);
            } else {
                self.posted_after_unsignaled(connection, slot, operation);
            }
            slot
        } else {
            self.post_slow(connection, request, wait, kept)?
        };
        self.checked();
        Ok(slot)
    }

    /// Records a signaled request that follows unsignaled ones.
    #[inline(never)]
    fn posted_after_unsignaled(
        &self,
        connection: &Connection,
        slot: &RequestSlot,
        operation: Operation,
    ) {
        self.posted(slot, operation, connection.link(slot, operation, true));
    }

    /// Posts a request when the next slot is not free, or when an unsignaled request has to be signaled.
    #[inline(never)]
    fn post_slow<'l, 'data: 'kept, 'kept, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        request: W,
        wait: SlotWait,
        kept: Kept<'kept>,
    ) -> Result<&'l RequestSlot, NotPosted<'l>> {
        let (queue, operation) = (connection.queue(W::OPERATION), W::OPERATION);
        let (slot, qp) = match connection.next_slot(queue) {
            Some(next_slot) => next_slot,
            None => match self.wait_for_slot(connection, queue, operation, wait) {
                Ok(taken) => taken,
                Err(error) => return Err(self.refuse(error, None)),
            },
        };
        let signaled = request.is_signaled() || connection.has_to_signal();
        if let Err(error) = kept.post(qp, request.signaled(signaled), slot.id()) {
            return Err(run_cold(move || {
                self.refused(connection, slot, operation, signaled, error)
            }));
        }
        queue.advance(slot);
        let state = connection.link(slot, operation, signaled);
        self.posted(slot, operation, state);
        Ok(slot)
    }

    /// Records that a post failed. If the device may have accepted the request all the same, records the request, too.
    fn refused(
        &self,
        connection: &Connection,
        slot: &RequestSlot,
        operation: Operation,
        signaled: bool,
        error: PostError,
    ) -> NotPosted<'_> {
        self.forget_call();
        let refused = RefusedWork::new(operation, connection.peer, error);
        if error.posted() == 0 {
            return self.refuse(refused.into(), None);
        }
        self.maybe_posted(connection, slot, operation, signaled);
        self.refuse(refused.into(), Some(WorkId::from_wr_id(slot.id())))
    }
}

impl Connection {
    /// Returns the queue for operations of this kind.
    #[inline(always)]
    pub(crate) const fn queue(&self, operation: Operation) -> &Queue {
        if operation.is_of_send_queue() { &self.send } else { &self.receive }
    }
}

/// A batch that was not posted, or was posted only in part.
pub(crate) struct BatchNotPosted {
    pub(crate) error: TransportError,
    /// The number of requests, from the first one on, that the device has accepted or may have accepted.
    pub(crate) posted: usize,
}

impl From<TransportError> for BatchNotPosted {
    #[cold]
    fn from(error: TransportError) -> Self {
        Self { error, posted: 0 }
    }
}

impl Ledger {
    /// Posts all requests in order, and stores their slots in `slots`. The last request is marked as signaled, so that
    /// its completion covers all of them. Waits for free slots until the deadline.
    ///
    /// Returns true if all requests are of one kind and signaled, and follow no unsignaled ones.
    #[inline(always)]
    pub(crate) fn post_batch<'l, 'data: 'kept, 'kept, I: InBatch<'data>>(
        &'l self,
        connection: &'l Connection,
        items: &mut [I],
        slots: &mut [&'l RequestSlot],
        deadline: &mut BatchDeadline,
        kept: Kept<'kept>,
    ) -> Result<bool, BatchNotPosted> {
        let Some(first) = items.first().map(InBatch::operation) else { return Ok(true) };
        let sends = first.is_of_send_queue();
        let queue = if sends { &connection.send } else { &connection.receive };
        if !Self::number(queue, items, slots) {
            let operations = || items.iter().map(InBatch::operation);
            let deadline = deadline.get(|| self.limits.longest(operations()));
            let deadline = Some(deadline).filter(|deadline| deadline.is_for_room());
            self.reserve(connection, queue, operations(), slots, deadline)?;
            items.iter_mut().zip(&*slots).for_each(|(item, slot)| item.number(slot.id()));
        }
        // Such requests need no links between their slots, and all slots get the same operation.
        let plain = !sends
            || connection.unsignaled.get() == 0
                && items.iter().all(|item| item.is_signaled() && item.is_like(&items[0]));
        if !plain {
            Self::signal(connection, items);
        }
        let posted = match connection.qp() {
            Some(qp) => kept.post_batch(qp, items).map_err(|error| {
                let operation = items.get(error.refused()).map_or(first, InBatch::operation);
                (error.posted(), RefusedWork::new(operation, connection.peer, error).into())
            }),
            None => Err((0, closed(connection))),
        };
        match posted {
            Ok(()) if plain => {
                slots.iter().for_each(|slot| slot.begin(first, SlotState::IN_FLIGHT));
                self.unreleased.set(self.unreleased.get() + slots.len() as u64);
            }
            Ok(()) => self.note_batch(connection, items, slots, items.len()),
            Err((posted, error)) => {
                self.note_batch(connection, items, slots, posted);
                return Err(BatchNotPosted { error, posted });
            }
        }
        slots.last().into_iter().for_each(|slot| queue.advance(slot));
        self.checked();
        Ok(plain)
    }

    /// Detaches the posted slots of a partly posted batch from their handles, so that their completions free them.
    /// Returns the error that stopped the batch.
    #[cold]
    pub(crate) fn disown_posted(
        &self,
        refused: BatchNotPosted,
        slots: &[&RequestSlot],
    ) -> TransportError {
        let posted = slots.iter().take(refused.posted);
        posted.for_each(|slot| Ticket::new(self, slot).disown());
        refused.error
    }

    /// Assigns the next slots of the queue to the requests, if all of these slots are free.
    #[inline(always)]
    fn number<'l, 'data, I: InBatch<'data>>(
        queue: &'l Queue,
        items: &mut [I],
        slots: &mut [&'l RequestSlot],
    ) -> bool {
        if slots.len() > queue.capacity() as usize {
            return false;
        }
        let mut next = queue.cursor();
        for (item, slot) in items.iter_mut().zip(slots) {
            if !next.is_free() {
                return false;
            }
            item.number(next.id());
            (*slot, next) = (next, next.next());
        }
        true
    }

    /// Marks the last request as signaled, and any others that have to be.
    #[inline(never)]
    fn signal<'data, I: InBatch<'data>>(connection: &Connection, items: &mut [I]) {
        let (mut unsignaled, last) = (connection.unsignaled.get(), items.len() - 1);
        for (place, item) in items.iter_mut().enumerate() {
            let signaled =
                item.is_signaled() || place == last || connection.has_to_signal_behind(unsignaled);
            unsignaled = if signaled { 0 } else { unsignaled + 1 };
            item.signal(signaled);
        }
    }

    /// Records the first `count` requests of a batch, which were posted, and frees the slots of the others. Used for a
    /// batch that was posted only partly, that contains different operations, or that contains or follows unsignaled
    /// requests.
    #[inline(never)]
    fn note_batch<'data, I: InBatch<'data>>(
        &self,
        connection: &Connection,
        items: &[I],
        slots: &[&RequestSlot],
        count: usize,
    ) {
        for (item, slot) in items.iter().zip(slots).take(count) {
            let operation = item.operation();
            let state = connection.link(slot, operation, item.is_signaled());
            self.posted(slot, operation, state);
        }
        Self::unreserve(&slots[count..]);
        self.checked();
    }
}
