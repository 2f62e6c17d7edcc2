//! Posts: a slot for each request, and what is noted of it.

use rdma_qp::PostError;

use super::queues::{Connection, Queue, Slot};
use super::ticket::Ticket;
use super::{Ledger, Room, closed, seldom};
use crate::deadline::Deadline;
use crate::kept::{InBatch, Kept};
use crate::operation::Operation;
use crate::request::Post;
use crate::transport_error::{TransportError, WorkId};

/// A request that was not posted: why, or nothing but that there was no room at once. As small as a pointer, so that the
/// result of a post stays in registers.
#[derive(Debug)]
pub(crate) struct NotPosted(Option<Box<Why>>);

#[derive(Debug)]
struct Why {
    error: TransportError,
    perhaps: Option<WorkId>,
}

impl NotPosted {
    /// The request that is with the device, perhaps: its slot waits as if it were.
    pub(crate) fn perhaps_posted(&self) -> Option<WorkId> {
        self.0.as_ref().and_then(|why| why.perhaps)
    }
}

impl From<TransportError> for NotPosted {
    #[cold]
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::WouldBlock => Self(None),
            error => Self(Some(Box::new(Why { error, perhaps: None }))),
        }
    }
}

impl From<NotPosted> for TransportError {
    #[cold]
    fn from(refused: NotPosted) -> Self {
        refused.0.map_or(Self::WouldBlock, |why| why.error)
    }
}

impl Ledger {
    /// Posts a request. It is over when its slot says so; after an error it may be with the device, which the error says.
    #[inline(always)]
    pub(crate) fn post<'l, 'data: 'kept, 'kept, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        request: W,
        room: Room,
        kept: Kept<'kept>,
    ) -> Result<Ticket<'l>, NotPosted> {
        let (queue, operation) = (connection.queue(W::OPERATION), W::OPERATION);
        let plain = !operation.is_of_send_queue() || connection.unsignaled.get() == 0;
        let slot = if request.is_signaled()
            && plain
            && let Some((slot, qp)) = connection.at_hand(queue)
        {
            if let Err(error) = kept.post(qp, request, slot.id()) {
                return Err(seldom(move || self.refused(connection, slot, operation, true, error)));
            }
            queue.advance(slot);
            self.posted(slot, operation);
            slot
        } else if !request.is_signaled()
            && !connection.has_to_signal()
            && let Some((slot, qp)) = connection.at_hand(queue)
        {
            if let Err(error) = kept.post(qp, request, slot.id()) {
                return Err(seldom(move || {
                    self.refused(connection, slot, operation, false, error)
                }));
            }
            queue.advance(slot);
            self.posted(slot, operation);
            self.link(connection, slot, false);
            slot
        } else {
            self.post_otherwise(connection, request, room, kept)?
        };
        self.checked();
        Ok(Ticket::new(self, slot))
    }

    /// The same, where there is no free slot at hand, or a signaled request is behind unsignaled ones.
    #[inline(never)]
    fn post_otherwise<'l, 'data: 'kept, 'kept, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        request: W,
        room: Room,
        kept: Kept<'kept>,
    ) -> Result<&'l Slot, NotPosted> {
        let (queue, operation) = (connection.queue(W::OPERATION), W::OPERATION);
        let (slot, qp) = match connection.at_hand(queue) {
            Some(at_hand) => at_hand,
            None => seldom(move || self.wait_for_room(connection, queue, operation, room))?,
        };
        let signaled = request.is_signaled() || connection.has_to_signal();
        if let Err(error) = kept.post(qp, request.signaled(signaled), slot.id()) {
            return Err(seldom(move || self.refused(connection, slot, operation, signaled, error)));
        }
        queue.advance(slot);
        self.posted(slot, operation);
        if operation.is_of_send_queue() {
            self.link(connection, slot, signaled);
        }
        Ok(slot)
    }

    /// What a refused post has left behind.
    fn refused(
        &self,
        connection: &Connection,
        slot: &Slot,
        operation: Operation,
        signaled: bool,
        error: PostError,
    ) -> NotPosted {
        self.forget_call();
        if error.posted() == 0 {
            return TransportError::from(error).into();
        }
        // Its slot waits as if it were posted.
        self.perhaps_posted(connection, slot, operation, signaled);
        NotPosted(Some(Box::new(Why { error: error.into(), perhaps: Some(WorkId(slot.id())) })))
    }
}

impl Connection {
    /// The queue for such operations.
    #[inline(always)]
    pub(crate) const fn queue(&self, operation: Operation) -> &Queue {
        if operation.is_of_send_queue() { &self.send } else { &self.receive }
    }
}

/// A batch that was not posted, or not wholly.
pub(crate) struct BatchNotPosted {
    pub(crate) error: TransportError,
    /// How many of its first requests are with the device, or may be.
    pub(crate) posted: usize,
}

impl From<TransportError> for BatchNotPosted {
    #[cold]
    fn from(error: TransportError) -> Self {
        Self { error, posted: 0 }
    }
}

impl Ledger {
    /// Posts all requests in order, into as many slots, which are named in `slots`. The last one is made signaled, so that
    /// its completion is that of all. Waits for room until the deadline, or not at all.
    #[inline(always)]
    pub(crate) fn post_batch<'l, 'data: 'kept, 'kept, I: InBatch<'data>>(
        &'l self,
        connection: &'l Connection,
        items: &mut [I],
        slots: &mut [&'l Slot],
        deadline: Option<&mut Deadline>,
        kept: Kept<'kept>,
    ) -> Result<(), BatchNotPosted> {
        let Some(first) = items.first() else { return Ok(()) };
        let sends = first.operation().is_of_send_queue();
        let queue = if sends { &connection.send } else { &connection.receive };
        if !Self::at_hand(queue, slots) {
            let operations = items.iter().map(InBatch::operation);
            self.reserve(connection, queue, operations, slots, deadline)?;
        }
        let mut unsignaled = if sends { connection.unsignaled.get() } else { 0 };
        let (mut linked, last) = (unsignaled != 0, items.len() - 1);
        for (place, (item, slot)) in items.iter_mut().zip(&*slots).enumerate() {
            let signaled =
                item.is_signaled() || place == last || connection.has_to_signal_behind(unsignaled);
            unsignaled = if signaled { 0 } else { unsignaled + 1 };
            linked |= !signaled;
            item.number(slot.id(), signaled);
        }
        let posted = match connection.qp() {
            Some(qp) => kept.post_batch(qp, items).map_err(|e| (e.posted(), e.into())),
            None => Err((0, closed(connection))),
        };
        match posted {
            Ok(()) if !linked => {
                for (item, slot) in items.iter().zip(&*slots) {
                    self.posted(slot, item.operation());
                }
            }
            Ok(()) => self.note_batch(connection, items, slots, items.len(), sends),
            Err((posted, error)) => {
                self.note_batch(connection, items, slots, posted, sends);
                return Err(BatchNotPosted { error, posted });
            }
        }
        slots.last().into_iter().for_each(|slot| queue.advance(slot));
        self.checked();
        Ok(())
    }

    /// Notes what is with the device of a batch that was not posted wholly, or has unsignaled requests.
    #[inline(never)]
    fn note_batch<'data, I: InBatch<'data>>(
        &self,
        connection: &Connection,
        items: &[I],
        slots: &[&Slot],
        count: usize,
        sends: bool,
    ) {
        for (item, slot) in items.iter().zip(slots).take(count) {
            self.posted(slot, item.operation());
            if sends {
                self.link(connection, slot, item.is_signaled());
            }
        }
        Self::unreserve(&slots[count..]);
        self.checked();
    }
}
