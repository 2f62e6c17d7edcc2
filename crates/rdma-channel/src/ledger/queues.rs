//! The queues of all connections: rings of slots, one slot for each request that a queue holds, and what is posted to
//! them. The unsafe code of the ledger is here.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use rdma_connect::{CloseReason, Operation, PeerAddress, WorkId, cause_of};
use rdma_qp::{
    AsyncEventKind, PollSlot, PostError, QueuePair, QueuedReceive, QueuedRequest, SendWorkRequest,
    WorkResult, WorkSuccess,
};

use super::state::SlotState;
use crate::request::{BatchRequest, Post};

mod members;

/// A place for one request at a time, of one queue of one connection.
///
/// The WR ID of a request is the slot's index below and the slot's generation above, so that a completion finds its
/// slot without a search, and one that comes twice, or late, finds that the generation has passed.
///
/// A slot is in the [`Queues`] that have made it, and nowhere else.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    /// The WR ID of the request in it, or of the next one.
    id: Cell<u64>,
    /// Its completion, if it is done and was signaled. Before that, whatever was polled while it was waited for.
    pub(super) completion: Cell<PollSlot>,
    state: Cell<SlotState>,
    pub(crate) operation: Cell<Operation>,
    /// The slot behind it in its ring.
    next: Cell<At>,
    /// Where the unsignaled request before it is, or the dead slot, if its state is linked.
    link: Cell<At>,
    /// Which connection it is of.
    pub(crate) connection: u32,
}

/// WR IDs have the index in so many bits, and the generation above them: what is added for the next one is still a
/// constant of an instruction.
const INDEX_BITS: u32 = WorkId::INDEX_BITS;
pub(crate) const GENERATION: u64 = 1 << INDEX_BITS;
/// So many requests can a ledger have: as many as there are indices, but for the dead slot's.
pub(crate) const MOST_REQUESTS: u32 = (1 << INDEX_BITS) - 1;

/// Where the slot of this WR ID is.
#[inline]
#[allow(clippy::cast_possible_truncation)] // masked; and usize has as many bits wherever there is RDMA
pub(crate) const fn index(id: u64) -> usize {
    (id & (GENERATION - 1)) as usize
}

impl RequestSlot {
    fn new(index: u32, connection: u32) -> Self {
        Self {
            id: Cell::new(index.into()),
            completion: Cell::default(),
            state: Cell::new(SlotState::FREE),
            operation: Cell::new(Operation::Send),
            next: Cell::new(At(NonNull::dangling())),
            link: Cell::new(At(NonNull::dangling())),
            connection,
        }
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.id.get()
    }

    #[inline(always)]
    pub(super) fn state(&self) -> SlotState {
        self.state.get()
    }

    #[inline(always)]
    pub(super) fn set(&self, state: SlotState) {
        debug_assert!(!self.state.get().is(SlotState::DEAD), "the dead slot stays dead");
        self.state.set(state);
    }

    /// Notes that its request is with the device, in that state.
    #[inline(always)]
    pub(super) fn begin(&self, operation: Operation, state: SlotState) {
        self.operation.set(operation);
        // The last, so that the compiler knows what is there when the handle is dropped at once.
        self.set(state);
    }

    #[inline(always)]
    pub(super) fn is_free(&self) -> bool {
        self.state.get().is(SlotState::FREE)
    }

    /// The slot behind it in its ring.
    #[inline(always)]
    pub(super) fn next(&self) -> &Self {
        // SAFETY: SAFETY.md F23: of the same queues, which are borrowed as long as this.
        unsafe { self.next.get().0.as_ref() }
    }

    /// The slot of the unsignaled request before it, or one of no such request.
    #[inline(always)]
    pub(super) fn link(&self) -> &Self {
        // SAFETY: SAFETY.md F23: of the same queues, which are borrowed as long as this.
        unsafe { self.link.get().0.as_ref() }
    }

    /// How its request ended, as its handle reports, now or again, if it has ended.
    pub(crate) fn report(&self) -> Option<WorkResult> {
        let state = self.state();
        if state.is_done() {
            self.set(state.to(SlotState::REPORTED));
        } else if !state.is_reported() {
            return None;
        }
        Some(self.result())
    }

    /// How what is done in it has ended.
    #[inline(always)]
    pub(super) fn result(&self) -> WorkResult {
        if self.state().is_unsignaled() {
            Ok(WorkSuccess::of_send(self.operation.get().opcode()))
        } else {
            self.completion.get().last().result()
        }
    }

    /// Makes it free for the next request, which has another WR ID.
    #[inline(always)]
    pub(super) fn free(&self) {
        self.id.set(self.id.get().wrapping_add(GENERATION));
        self.set(SlotState::FREE);
    }
}

/// Where a slot is: each post needs it, and an index would have to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(NonNull<RequestSlot>);

// SAFETY: SAFETY.md F23: an address, which is followed with the queues at hand.
unsafe impl Send for At {}

/// All slots. The first one is dead: no request is ever in it, so that no WR ID is 0.
struct Slots(NonNull<[RequestSlot]>);

// SAFETY: SAFETY.md F23: it owns its slots, which can be sent.
unsafe impl Send for Slots {}

impl Slots {
    fn new(slots: impl Iterator<Item = RequestSlot>) -> Self {
        let dead = RequestSlot { state: Cell::new(SlotState::DEAD), ..RequestSlot::new(0, 0) };
        let all: Box<[RequestSlot]> = [dead].into_iter().chain(slots).collect();
        let slots = Self(NonNull::from(Box::leak(all)));
        // Until something else is behind it, each is behind itself.
        for slot in slots.all() {
            slot.next.set(At(NonNull::from(slot)));
            slot.link.set(slots.at(0));
        }
        slots
    }

    #[inline(always)]
    const fn all(&self) -> &[RequestSlot] {
        // SAFETY: SAFETY.md F23: leaked in `new`, freed in `drop`, and only ever shared in between.
        unsafe { self.0.as_ref() }
    }

    fn at(&self, index: usize) -> At {
        At(NonNull::from(&self.all()[index]))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: SAFETY.md F23: it was leaked in `new`, and this is its end.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

/// The slots of one queue, in a ring. It is in the [`Queues`] that have made it, and nowhere else.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The slot for the next request; the dead one if the connection is closed.
    cursor: Cell<At>,
    first: At,
    indices: Range<usize>,
}

impl Queue {
    /// So many slots from `first` on, one behind the other.
    fn new(slots: &Slots, first: u32, count: u32) -> Self {
        let indices = first as usize..(first + count) as usize;
        for index in indices.clone() {
            let next = if index + 1 < indices.end { index + 1 } else { indices.start };
            slots.all()[index].next.set(slots.at(next));
        }
        let first = slots.at(if count == 0 { 0 } else { indices.start });
        Self { cursor: Cell::new(first), first, indices }
    }

    /// The slot for the next request, if it is free: it is not if the connection is closed.
    #[inline(always)]
    pub(super) fn next_free(&self) -> Option<&RequestSlot> {
        Some(self.cursor()).filter(|slot| slot.is_free())
    }

    #[inline(always)]
    pub(super) fn cursor(&self) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: of the queues that this one is in, which are borrowed as long as this.
        unsafe { self.cursor.get().0.as_ref() }
    }

    /// The next request goes behind that slot, which is one of this queue.
    #[inline(always)]
    pub(super) fn advance(&self, slot: &RequestSlot) {
        debug_assert!(self.indices.contains(&index(slot.id())), "a slot of another queue");
        self.cursor.set(slot.next.get());
    }

    /// How many requests it holds.
    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.indices.len()).unwrap_or(u32::MAX)
    }
}

/// What the queues of each connection were asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// How many requests the send queue holds.
    pub(crate) sends: u32,
    /// How many receives there can be.
    pub(crate) receives: u32,
    /// Each request of the send queue makes a completion, whatever it says.
    pub(crate) signals_all: bool,
}

/// One queue pair, with the slots of its requests. It is in the [`Queues`] that have made it, and nowhere else.
pub(crate) struct Connection {
    /// `None` when it was destroyed, or none was there yet: then the cursors are at the dead slot.
    qp: Option<QueuePair>,
    pub(crate) send: Queue,
    pub(crate) receive: Queue,
    /// Where the last request of the send queue is, if that is unsignaled; else the dead slot.
    last_unsignaled: Cell<At>,
    /// How many unsignaled requests there are behind the last signaled one.
    pub(super) unsignaled: Cell<u32>,
    /// How many would be too many.
    too_many: u32,
    closed: Cell<Option<CloseReason>>,
    /// What the device has said of why requests are flushed, when it was asked and has said something.
    cause: Cell<Option<AsyncEventKind>>,
    dead: At,
    /// Whom it is to, also when the queue pair is destroyed. `None` if that does not know.
    pub(crate) peer: Option<PeerAddress>,
}

/// In one line.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.qp {
            None if self.is_absent() => return f.write_str("absent"),
            Some(qp) => write!(f, "QPN {}", qp.qpn())?,
            None => f.write_str("destroyed")?,
        }
        self.peer.map_or(Ok(()), |peer| write!(f, " to {peer}"))?;
        self.closed().map_or(Ok(()), |reason| write!(f, ", closed, since {reason}"))
    }
}

impl Connection {
    fn new(qp: Option<QueuePair>, slots: &Slots, first: u32, asked: Asked) -> Self {
        let Asked { sends, receives, signals_all } = asked;
        let peer = qp.as_ref().and_then(QueuePair::peer).map(PeerAddress::from);
        let connection = Self {
            qp,
            peer,
            send: Queue::new(slots, first, sends),
            receive: Queue::new(slots, first + sends, receives),
            last_unsignaled: Cell::new(slots.at(0)),
            unsignaled: Cell::new(0),
            // One request is signaled in each half of the queue.
            too_many: if signals_all { 1 } else { sends / 2 },
            closed: Cell::new(None),
            cause: Cell::new(None),
            dead: slots.at(0),
        };
        if connection.qp.is_none() {
            connection.close(CloseReason::Absent);
        }
        connection
    }

    /// If it is not destroyed.
    #[inline(always)]
    pub(crate) const fn qp(&self) -> Option<&QueuePair> {
        self.qp.as_ref()
    }

    /// Whether it takes no requests any more, and why.
    #[inline]
    pub(crate) const fn closed(&self) -> Option<CloseReason> {
        self.closed.get()
    }

    /// What the device has said of why requests are flushed, if it is known.
    pub(crate) const fn cause(&self) -> Option<AsyncEventKind> {
        self.cause.get()
    }

    /// Asks the device, unless it has said it before.
    #[cold]
    pub(crate) fn ask_for_cause(&self) -> Option<AsyncEventKind> {
        if self.cause.get().is_none() {
            self.cause.set(self.qp().and_then(cause_of));
        }
        self.cause.get()
    }

    /// Takes no more requests. The first reason stays.
    #[cold]
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closed.get().is_none() {
            self.closed.set(Some(reason));
        }
        self.take_no_more();
    }

    fn take_no_more(&self) {
        self.send.cursor.set(self.dead);
        self.receive.cursor.set(self.dead);
    }

    /// The slot for the next request of one of its queues, if that is free, and the queue pair.
    #[inline(always)]
    pub(super) fn at_hand<'q>(
        &'q self,
        queue: &'q Queue,
    ) -> Option<(&'q RequestSlot, &'q QueuePair)> {
        let slot = queue.next_free()?;
        // SAFETY: SAFETY.md F23: without a queue pair the cursors are at the dead slot, which is not free.
        Some((slot, unsafe { self.qp.as_ref().unwrap_unchecked() }))
    }

    /// Whether the next request of one of its queues has a slot at hand.
    #[inline(always)]
    pub(crate) fn has_room(&self, queue: &Queue) -> bool {
        queue.next_free().is_some()
    }

    /// The slot of the last request of the send queue, if that is unsignaled; else the dead one.
    #[inline(always)]
    pub(super) fn last_unsignaled(&self) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: of the queues that this connection is in, which are borrowed as long as this.
        unsafe { self.last_unsignaled.get().0.as_ref() }
    }

    /// Notes whether a request that was posted is signaled. If it is, its completion is that of the unsignaled ones before
    /// it, too. The state that it [begins](RequestSlot::begin) in.
    #[inline(always)]
    pub(super) fn link(
        &self,
        slot: &RequestSlot,
        operation: Operation,
        signaled: bool,
    ) -> SlotState {
        if !operation.is_of_send_queue() || signaled && self.unsignaled.get() == 0 {
            return SlotState::IN_FLIGHT;
        }
        let last = if signaled { self.dead } else { At(NonNull::from(slot)) };
        slot.link.set(self.last_unsignaled.replace(last));
        self.unsignaled.set(if signaled { 0 } else { self.unsignaled.get() + 1 });
        if signaled { SlotState::IN_FLIGHT.linked() } else { SlotState::IN_FLIGHT.unsignaled() }
    }

    /// Whether the next request cannot be unsignaled.
    #[inline(always)]
    pub(super) const fn has_to_signal(&self) -> bool {
        self.has_to_signal_behind(self.unsignaled.get())
    }

    /// Whether behind so many unsignaled requests another one cannot be unsignaled.
    #[inline(always)]
    pub(super) const fn has_to_signal_behind(&self, unsignaled: u32) -> bool {
        unsignaled + 1 >= self.too_many
    }
}

/// The queues of all connections, with their slots.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Where a channel finds its only one without asking. Without a queue pair, if there is none.
    first: Connection,
    others: Box<[Connection]>,
    count: usize,
    /// Freed after all that points into it.
    slots: Slots,
}

impl Queues {
    /// A place for each of these queue pairs, or for one that comes later; each was asked for the same.
    pub(super) fn new(qps: Vec<Option<QueuePair>>, asked: Asked) -> Self {
        let (of_each, count) = (asked.sends + asked.receives, qps.len());
        let indices = |connection| 1 + connection * of_each..1 + (connection + 1) * of_each;
        let all = (0..).zip(&qps).flat_map(|(connection, _)| {
            indices(connection).map(move |index| RequestSlot::new(index, connection))
        });
        let slots = Slots::new(all);
        let mut connections = (0..)
            .zip(qps)
            .map(|(connection, qp)| Connection::new(qp, &slots, indices(connection).start, asked));
        let none = || Connection::new(None, &slots, 1, Asked::default());
        let first = connections.next().unwrap_or_else(none);
        Self { first, others: connections.collect(), count, slots }
    }

    /// Of a channel, which has one.
    #[inline(always)]
    pub(crate) const fn only(&self) -> &Connection {
        &self.first
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn get(&self, peer: usize) -> Option<&Connection> {
        match peer.checked_sub(1) {
            None => (self.count > 0).then_some(&self.first),
            Some(other) => self.others.get(other),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        std::iter::once(&self.first).take(self.count).chain(&self.others)
    }

    /// All slots.
    #[inline(always)]
    pub(super) const fn slots(&self) -> &[RequestSlot] {
        self.slots.all()
    }

    /// The slot that no request is ever in.
    #[inline(always)]
    pub(super) fn dead(&self) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: of these queues.
        unsafe { self.first.dead.0.as_ref() }
    }

    /// The slots of a queue.
    pub(super) fn slots_of(&self, queue: &Queue) -> &[RequestSlot] {
        self.slots().get(queue.indices.clone()).unwrap_or_default()
    }

    /// The slot that this is the WR ID of.
    #[inline(always)]
    pub(super) fn by_id(&self, id: u64) -> Option<&RequestSlot> {
        self.slots().get(index(id)).filter(|slot| slot.id.get() == id)
    }

    /// The slot that was that of this WR ID.
    pub(crate) fn slot_of(&self, id: u64) -> Option<&RequestSlot> {
        self.slots().get(index(id))
    }
}

/// Says that the memory of requests is kept until they are over, if it is borrowed for `'kept` or longer. Whoever makes
/// one sees to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'kept>(PhantomData<fn(&'kept ())>);

impl Kept<'_> {
    /// # Safety
    /// Memory that is borrowed for its lifetime is kept, as [`QueuePair::post`] asks, until each request is over that is
    /// posted with it, whatever else happens.
    #[inline(always)]
    pub(crate) const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'kept> Kept<'kept> {
    /// Posts a request.
    #[inline(always)]
    pub(crate) fn post<'data: 'kept, W: Post<'data>>(
        self,
        qp: &QueuePair,
        request: W,
        id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F22: the memory is borrowed for 'data, so that what this says is said of it.
        unsafe { qp.post(request, id) }
    }

    /// Posts requests with one doorbell.
    #[inline(always)]
    pub(crate) fn post_batch<'data: 'kept, I: InBatch<'data>>(
        self,
        qp: &QueuePair,
        items: &mut [I],
    ) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F22: the memory is borrowed for 'data, so that what this says is said of it.
        unsafe { I::post(items, qp) }
    }
}

/// A request in a batch, whose memory is borrowed for `'data`: of the send queue of any kind, or a receive.
pub(crate) trait InBatch<'data>: Sized {
    fn operation(&self) -> Operation;
    fn is_signaled(&self) -> bool;
    fn number(&mut self, id: u64);
    fn signal(&mut self, signaled: bool);

    /// # Safety
    /// That of [`QueuePair::post_batch`].
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError>;
}

impl<'data> InBatch<'data> for BatchRequest<'_, 'data> {
    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::of(self.0.opcode())
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        self.0.is_signaled()
    }

    #[inline(always)]
    fn number(&mut self, id: u64) {
        self.0.set_wr_id(id);
    }

    #[inline(always)]
    fn signal(&mut self, signaled: bool) {
        self.0.set_signaled(signaled);
    }

    #[inline(always)]
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        let (first, count) = (batch.as_mut_ptr().cast::<QueuedRequest<'_, '_>>(), batch.len());
        // SAFETY: SAFETY.md F5: each is laid out as what is in it; borrowed as the slice is.
        let queued = unsafe { slice::from_raw_parts_mut(first, count) };
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        unsafe { qp.post_batch(queued) }
    }
}

impl<'data> InBatch<'data> for QueuedReceive<'_, 'data> {
    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::Receive
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        true
    }

    #[inline(always)]
    fn number(&mut self, id: u64) {
        self.set_wr_id(id);
    }

    /// Receives complete, always.
    #[inline(always)]
    fn signal(&mut self, _: bool) {}

    #[inline(always)]
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        unsafe { qp.post_receive_batch(batch) }
    }
}

/// Posts a request without memory to a queue pair in error: it is flushed after all before it.
pub(crate) fn post_marker(qp: &QueuePair, id: u64) -> Result<(), PostError> {
    // SAFETY: SAFETY.md F22: nothing that `post` asks for is there: it has no elements, and is neither a bind
    // nor a datagram.
    unsafe { qp.post(SendWorkRequest::new(&[]), id) }
}

#[cfg(test)]
mod tests;
