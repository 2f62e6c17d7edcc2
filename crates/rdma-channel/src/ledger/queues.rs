//! The queues of all connections: rings with one slot for each request that a queue can hold. Requests are posted to
//! the queues here. This file and `queues/batch.rs` contain the unsafe code of the ledger.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use rdma_connect::{CloseReason, Operation, PeerAddress, WorkId};
use rdma_qp::{
    AsyncEventKind, PollSlot, PostError, QueuePair, SendWorkRequest, WorkCompletion, WorkResult,
    WorkSuccess,
};

use super::state::SlotState;
use crate::request::Post;

mod batch;
mod closing;
mod members;

pub(crate) use batch::InBatch;

/// A slot of one queue, which holds one request at a time. It never leaves the [`Queues`] that created it.
///
/// The low bits of a WR ID contain the slot's index, and the high bits its generation. Therefore, the slot of a
/// completion is found without a search. If the completion is late or a duplicate, the generation no longer matches.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RequestSlot {
    /// The first field, because otherwise the compiler does not know the state when a handle is dropped right after the
    /// post.
    state: Cell<SlotState>,
    pub(crate) operation: Cell<Operation>,
    /// The index of the connection that the slot belongs to.
    pub(crate) connection: u32,
    /// The WR ID of the current request, or of the next one if the slot is free.
    id: Cell<u64>,
    /// The completion of a signaled request that is done. Until then, the completion of any request that the slot's
    /// handle polled last.
    pub(super) completion: Cell<PollSlot>,
    /// The next slot in the ring.
    next: Cell<At>,
    /// The slot of the previous unsignaled request, or the dead slot. Valid only if the state is linked.
    link: Cell<At>,
}

/// The number of low WR ID bits that contain the index.
const INDEX_BITS: u32 = WorkId::INDEX_BITS;
/// The increment that gives a WR ID its next generation. It fits into an immediate operand.
pub(crate) const GENERATION: u64 = 1 << INDEX_BITS;
/// The maximum number of requests of a ledger: every index except that of the dead slot.
pub(crate) const MOST_REQUESTS: u32 = (1 << INDEX_BITS) - 1;

/// Returns the index of the slot with this WR ID.
#[inline]
#[allow(clippy::cast_possible_truncation)] // masked, and usize has enough bits on all RDMA platforms
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

    /// Records that the device has accepted the request, with its initial state.
    #[inline(always)]
    pub(super) fn begin(&self, operation: Operation, state: SlotState) {
        self.operation.set(operation);
        // The state is stored last, so that the compiler knows it if the handle is dropped at once.
        self.set(state);
    }

    #[inline(always)]
    pub(super) fn is_free(&self) -> bool {
        self.state.get().is(SlotState::FREE)
    }

    /// Returns the next slot in the ring.
    #[inline(always)]
    pub(super) fn next(&self) -> &Self {
        // SAFETY: SAFETY.md F23: the slot belongs to the same queues, which are borrowed for as long as `self`.
        unsafe { self.next.get().0.as_ref() }
    }

    /// Returns the slot that held the previous unsignaled request when this one was posted, or the dead slot.
    #[inline(always)]
    pub(super) fn link(&self) -> &Self {
        // SAFETY: SAFETY.md F23: the slot belongs to the same queues, which are borrowed for as long as `self`.
        unsafe { self.link.get().0.as_ref() }
    }

    /// Returns the result if the request is done. The handle can report it several times.
    pub(crate) fn report(&self) -> Option<WorkResult> {
        let state = self.state();
        if state.is_done() {
            self.set(state.to(SlotState::REPORTED));
        } else if !state.is_reported() {
            return None;
        }
        Some(self.result())
    }

    /// Returns the result of the request, which must be done.
    #[inline(always)]
    pub(super) fn result(&self) -> WorkResult {
        if self.state().is_unsignaled() {
            Ok(WorkSuccess::of_send(self.operation.get().opcode()))
        } else {
            self.completion.get().last().result()
        }
    }

    /// Returns true if the slot's request, whose completion this is, has succeeded and its handle was dropped.
    #[inline(always)]
    pub(super) fn is_dropped_success(&self, completion: WorkCompletion) -> bool {
        self.state().is(SlotState::IN_FLIGHT_DROPPED) && completion.result().is_ok()
    }

    /// Frees the slot, and assigns the WR ID for its next request.
    #[inline(always)]
    pub(super) fn free(&self) {
        self.id.set(self.id.get().wrapping_add(GENERATION));
        self.set(SlotState::FREE);
    }
}

/// The address of a slot. Every post needs one, and an index would have to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(NonNull<RequestSlot>);

// SAFETY: SAFETY.md F23: this is an address that is dereferenced only while the queues are borrowed.
unsafe impl Send for At {}

/// All slots. The first one is dead: it never holds a request. So no WR ID is 0.
struct Slots(NonNull<[RequestSlot]>);

// SAFETY: SAFETY.md F23: a `Slots` owns its slots, which are `Send`.
unsafe impl Send for Slots {}

impl Slots {
    fn new(slots: impl Iterator<Item = RequestSlot>) -> Self {
        let dead = RequestSlot { state: Cell::new(SlotState::DEAD), ..RequestSlot::new(0, 0) };
        let all: Box<[RequestSlot]> = [dead].into_iter().chain(slots).collect();
        let slots = Self(NonNull::from(Box::leak(all)));
        // Initially, each slot is its own successor.
        for slot in slots.all() {
            slot.next.set(At(NonNull::from(slot)));
            slot.link.set(slots.at(0));
        }
        slots
    }

    #[inline(always)]
    const fn all(&self) -> &[RequestSlot] {
        // SAFETY: SAFETY.md F23: the slots are leaked in `new` and freed in `drop`, with only shared references between.
        unsafe { self.0.as_ref() }
    }

    fn at(&self, index: usize) -> At {
        At(NonNull::from(&self.all()[index]))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: SAFETY.md F23: the slots were leaked in `new`, and `drop` is the last use of them.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

/// The slots of one queue, linked in a ring. A queue never leaves the [`Queues`] that created it.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The slot for the next request, or the dead slot if the connection is closed.
    cursor: Cell<At>,
    first: At,
    indices: Range<usize>,
}

impl Queue {
    /// Links `count` slots, beginning with `first`, in a ring.
    fn new(slots: &Slots, first: u32, count: u32) -> Self {
        let indices = first as usize..(first + count) as usize;
        for index in indices.clone() {
            let next = if index + 1 < indices.end { index + 1 } else { indices.start };
            slots.all()[index].next.set(slots.at(next));
        }
        let first = slots.at(if count == 0 { 0 } else { indices.start });
        Self { cursor: Cell::new(first), first, indices }
    }

    /// Returns the slot for the next request if it is free. On a closed connection, it never is.
    #[inline(always)]
    pub(super) fn next_free(&self) -> Option<&RequestSlot> {
        Some(self.cursor()).filter(|slot| slot.is_free())
    }

    #[inline(always)]
    pub(super) fn cursor(&self) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: the slot is in the same `Queues`, which are borrowed for as long as `self`.
        unsafe { self.cursor.get().0.as_ref() }
    }

    /// Moves the cursor past `slot`, which must belong to this queue.
    #[inline(always)]
    pub(super) fn advance(&self, slot: &RequestSlot) {
        debug_assert!(self.indices.contains(&index(slot.id())), "a slot of another queue");
        self.cursor.set(slot.next.get());
    }

    /// Returns the maximum number of requests in the queue.
    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.indices.len()).unwrap_or(u32::MAX)
    }
}

/// The queue sizes and settings that the program requested for each connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// The maximum number of requests in the send queue.
    pub(crate) sends: u32,
    /// The maximum number of receives.
    pub(crate) receives: u32,
    /// Whether every request of the send queue is signaled, whatever its own flag is.
    pub(crate) signals_all: bool,
}

/// One queue pair, with the slots of its requests. A connection never leaves the [`Queues`] that created it.
pub(crate) struct Connection {
    /// `None` before a queue pair is added and after it is destroyed. The cursors are then at the dead slot.
    qp: Option<QueuePair>,
    pub(crate) send: Queue,
    pub(crate) receive: Queue,
    /// The slot of the last request of the send queue if that request is unsignaled; otherwise the dead slot.
    last_unsignaled: Cell<At>,
    /// The number of unsignaled requests since the last signaled one.
    pub(super) unsignaled: Cell<u32>,
    /// The maximum number of consecutive unsignaled requests.
    most_unsignaled: u32,
    closed: Cell<Option<CloseReason>>,
    /// The cause of flushed requests, once the device has reported it.
    cause: Cell<Option<AsyncEventKind>>,
    dead: At,
    /// The peer, which is kept after the queue pair is destroyed. `None` if the queue pair does not know its peer.
    pub(crate) peer: Option<PeerAddress>,
}

/// Formats the connection in one line.
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
            // This way, each half of the queue contains a signaled request.
            most_unsignaled: if signals_all { 0 } else { (sends / 2).saturating_sub(1) },
            closed: Cell::new(None),
            cause: Cell::new(None),
            dead: slots.at(0),
        };
        if connection.qp.is_none() {
            connection.close(CloseReason::Absent);
        }
        connection
    }

    /// Returns the queue pair, unless it was destroyed.
    #[inline(always)]
    pub(crate) const fn qp(&self) -> Option<&QueuePair> {
        self.qp.as_ref()
    }

    /// Returns the slot for the next request of `queue` and the queue pair, if that slot is free.
    #[inline(always)]
    pub(super) fn next_slot<'q>(
        &'q self,
        queue: &'q Queue,
    ) -> Option<(&'q RequestSlot, &'q QueuePair)> {
        let slot = queue.next_free()?;
        // SAFETY: SAFETY.md F23: without a queue pair, the cursors are at the dead slot, which is never free.
        Some((slot, unsafe { self.qp.as_ref().unwrap_unchecked() }))
    }

    /// Returns true if the slot for the next request of `queue` is free.
    #[inline(always)]
    pub(crate) fn has_room(&self, queue: &Queue) -> bool {
        queue.next_free().is_some()
    }

    /// Returns the slot of the last request of the send queue if that request is unsignaled; otherwise the dead slot.
    #[inline(always)]
    pub(super) fn last_unsignaled(&self) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: the slot belongs to the same `Queues` as `self`, and the borrow of `self` covers them.
        unsafe { self.last_unsignaled.get().0.as_ref() }
    }

    /// Records whether a posted request is signaled, because the completion of a signaled request also covers the
    /// unsignaled ones before it. Returns the state that the request [begins](RequestSlot::begin) in.
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

    /// Returns true if the next request must be signaled.
    #[inline(always)]
    pub(super) const fn has_to_signal(&self) -> bool {
        self.has_to_signal_behind(self.unsignaled.get())
    }

    /// Returns true if the request that follows `unsignaled` unsignaled ones must be signaled.
    #[inline(always)]
    pub(super) const fn has_to_signal_behind(&self, unsignaled: u32) -> bool {
        unsignaled >= self.most_unsignaled
    }
}

/// The queues of all connections, with their slots.
#[derive(Debug)]
pub(crate) struct Queues {
    /// The first connection. It is not in `others`, so that a channel finds its only connection without an index. If
    /// `count` is 0, this is a placeholder without a queue pair.
    first: Connection,
    others: Box<[Connection]>,
    count: usize,
    /// For each of the first two completions of a poll, the slot to which it probably belongs. This is the slot after
    /// that of the last completion at the same place, because the requests of a queue complete in order.
    expected: [Cell<At>; 2],
    /// Freed after all pointers into it are gone.
    slots: Slots,
}

impl Queues {
    /// Creates a connection for each entry. `None` reserves a place for a queue pair that is added later.
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
        let expected = [(); 2].map(|()| Cell::new(slots.at(0)));
        Self { first, others: connections.collect(), count, expected, slots }
    }

    /// Returns the only connection of a channel.
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

    /// Returns all slots.
    #[inline(always)]
    pub(super) const fn slots(&self) -> &[RequestSlot] {
        self.slots.all()
    }

    /// Returns the slot that never holds a request.
    #[inline(always)]
    pub(super) fn dead(&self) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: the slot belongs to these queues.
        unsafe { self.first.dead.0.as_ref() }
    }

    /// Returns the slot to which the completion at this place of the next poll probably belongs.
    #[inline(always)]
    pub(super) fn expected(&self, place: usize) -> &RequestSlot {
        // SAFETY: SAFETY.md F23: the slot belongs to these queues.
        unsafe { self.expected[place].get().0.as_ref() }
    }

    /// Sets the slot to which the completion at this place of the next poll probably belongs. The slot must belong to
    /// these queues.
    #[inline(always)]
    pub(super) fn expect(&self, place: usize, slot: &RequestSlot) {
        debug_assert!(std::ptr::eq(&raw const self.slots()[index(slot.id())], slot), "not a slot");
        self.expected[place].set(At(NonNull::from(slot)));
    }

    /// Returns the slots of a queue.
    pub(super) fn slots_of(&self, queue: &Queue) -> &[RequestSlot] {
        self.slots().get(queue.indices.clone()).unwrap_or_default()
    }

    /// Returns the slot whose current WR ID is `id`. If there is none, returns the dead slot.
    #[inline(always)]
    pub(super) fn by_id(&self, id: u64) -> &RequestSlot {
        match self.slots().get(index(id)) {
            Some(slot) if slot.id.get() == id => slot,
            _ => self.dead(),
        }
    }

    /// Returns the slot whose current or earlier WR ID is `id`.
    pub(crate) fn slot_of(&self, id: u64) -> Option<&RequestSlot> {
        self.slots().get(index(id))
    }
}

/// Proof that memory borrowed for `'kept` stays valid until the requests that use it have completed. The code that
/// creates the value guarantees this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'kept>(PhantomData<fn(&'kept ())>);

impl Kept<'_> {
    /// # Safety
    /// Memory borrowed for `'kept` must stay valid, as the contract of [`QueuePair::post`] requires, until every
    /// request posted with this value has completed, whatever else happens.
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
        // SAFETY: SAFETY.md F22: the memory is borrowed for 'data, which outlives 'kept, so `new`'s contract covers it.
        unsafe { qp.post(request, id) }
    }

    /// Posts requests with one doorbell.
    #[inline(always)]
    pub(crate) fn post_batch<'data: 'kept, I: InBatch<'data>>(
        self,
        qp: &QueuePair,
        items: &mut [I],
    ) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F22: the memory is borrowed for 'data, which outlives 'kept, so `new`'s contract covers it.
        unsafe { I::post(items, qp) }
    }
}

/// Posts a request without memory to a queue pair in the error state. It is flushed after all requests before it.
pub(crate) fn post_marker(qp: &QueuePair, id: u64) -> Result<(), PostError> {
    // SAFETY: SAFETY.md F22: no elements, no bind and no datagram, so `post` requires nothing.
    unsafe { qp.post(SendWorkRequest::new(&[]), id) }
}

#[cfg(test)]
mod tests;
