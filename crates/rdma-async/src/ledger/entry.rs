//! One connection in its ledger, with its queue pair and the slots of its requests.

pub(crate) mod posting;

use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::task::Waker;

use rdma_connect::{CloseReason, ConnectionCounters, Operation, PeerAddress, TransportError};
use rdma_mem::SharedRegion;
use rdma_qp::{
    Qpn, QueuePair, QueuePairType, WorkCompletion, WorkError, WorkErrorClass, WorkErrorCode,
    WorkResult, WorkSuccess,
};

use super::Ended;
use super::after::{After, Afters};
use super::post;
use super::slots::{Id, Phase, RequestSlot, Side, Slots};
use super::waiters::Waiters;
use crate::buffer::held::Held;
use crate::buffer::held::sealed::Lease;
use crate::buffer::view::BufferSlice;

/// A message that arrived in the memory of a dropped receive.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// `None` for a receive without memory.
    pub(crate) memory: Option<BufferSlice>,
    pub(crate) success: WorkSuccess,
}

/// Whether a new queue pair may enter an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Renewal {
    /// None is expected, or the connection was closed in the meantime.
    #[default]
    None,
    /// One is about to enter.
    Expected,
    /// One was about to enter, but its port went down.
    LostPort,
}

/// An entry of a ledger, with or without a connection.
///
/// The device may use the contents of the slots until the queue pair is destroyed, so the queue pair is destroyed
/// first. If it cannot be destroyed, the slots are never dropped (SAFETY.md F28).
#[derive(Debug, Default)]
pub(crate) struct ConnectionEntry {
    qp: Option<QueuePair>,
    slots: Slots,
    /// One word per slot, which receives the result of an atomic operation. Created before the first atomic operation.
    words: Option<SharedRegion>,
    /// The serial number of the connection in this ledger, or 0 without a connection.
    pub(crate) serial: u64,
    /// The epoch: the number of the connection's current or latest queue pair.
    pub(crate) epoch: u32,
    pub(crate) qpn: Qpn,
    pub(crate) peer: Option<PeerAddress>,
    /// The port of the queue pair, or `None` if the device does not report it.
    port: Option<u8>,
    closed: Option<CloseReason>,
    /// The reason why the previous queue pair ended.
    ended_before: Option<CloseReason>,
    /// Set while the connection drains, which means that it accepts no requests and closes when its send queue has
    /// completed. The value is the number of requests in that queue that are still outstanding.
    draining: Option<u32>,
    /// Whether a request of the send queue failed, or was outstanding when the queue pair was destroyed.
    has_lost: bool,
    /// Whether the provider has refused to destroy the queue pair.
    has_refused: bool,
    renewal: Renewal,
    /// Messages that arrived for dropped receives, in order.
    arrived: VecDeque<Arrived>,
    /// The number of operations that wait for a slot, per queue.
    waiting: [usize; 2],
    waiters: Arc<Waiters>,
    /// `completed` is only set in a snapshot.
    counters: ConnectionCounters,
    is_taken: bool,
    /// Whether the queue pair was [taken out](Self::take) but has not been destroyed yet.
    is_ending: bool,
    /// Whether the last owner was dropped. The thread that destroys the queue pair then frees the entry.
    is_abandoned: bool,
}

/// The contents of a connection, released when this is dropped.
pub(crate) type Contents = (Slots, VecDeque<Arrived>, Option<SharedRegion>);

impl ConnectionEntry {
    pub(crate) const fn is_empty(&self) -> bool {
        !self.is_taken
    }

    /// Puts a connection into this entry.
    pub(crate) fn enter(
        &mut self,
        qp: (QueuePair, Option<u8>),
        serial: u64,
        depth: [u32; 2],
        waiters: Arc<Waiters>,
    ) {
        debug_assert!(self.is_empty());
        self.slots = Slots::new(depth, self.slots.next_generation());
        (self.waiters, self.closed) = (waiters, None);
        (self.waiting, self.is_taken, self.is_abandoned) = ([0; 2], true, false);
        (self.serial, self.counters) = (serial, ConnectionCounters::default());
        self.renew(qp, 0);
    }

    /// Puts a new queue pair into the entry after the old one has been destroyed. The slots keep the outcomes of
    /// requests that ended with the old queue pair. Slots of leaked futures stay occupied.
    pub(crate) fn renew(&mut self, (qp, port): (QueuePair, Option<u8>), epoch: u32) {
        debug_assert!(self.is_taken && self.is_gone());
        (self.ended_before, self.epoch) = (self.closed.take(), epoch);
        (self.qpn, self.peer, self.port) = (qp.qpn(), qp.peer().map(PeerAddress::from), port);
        (self.qp, self.draining) = (Some(qp), None);
        (self.has_lost, self.has_refused, self.renewal) = (false, false, Renewal::None);
    }

    /// Records that a new queue pair is about to enter.
    pub(crate) const fn expect_renewal(&mut self) {
        self.renewal = Renewal::Expected;
    }

    /// Records that a port has failed, or everything if `port` is `None`. Returns true if the connection is concerned.
    /// A new queue pair may then not enter.
    pub(crate) fn note_outage(&mut self, port: Option<u8>) -> bool {
        let is_of = self.is_of(port);
        match port {
            _ if !is_of => {}
            None => self.forbid_renewal(),
            Some(_) if self.renewal == Renewal::Expected => self.renewal = Renewal::LostPort,
            Some(_) => {}
        }
        is_of
    }

    /// Returns true if the port went down while a new queue pair was about to enter.
    pub(crate) fn has_lost_port(&self) -> bool {
        self.renewal == Renewal::LostPort
    }

    /// Records that the connection was closed, so that no new queue pair may enter.
    pub(crate) const fn forbid_renewal(&mut self) {
        self.renewal = Renewal::None;
    }

    /// Returns true if a new queue pair can enter.
    pub(crate) fn can_renew(&self) -> bool {
        self.is_gone() && self.renewal == Renewal::Expected
    }

    /// Returns true if the provider has refused to destroy the queue pair, and no further attempt has been made.
    pub(crate) const fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Returns true if a thread is destroying the queue pair.
    pub(crate) const fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Returns true if the queue pair has been destroyed, so that the device holds no request.
    pub(crate) const fn is_gone(&self) -> bool {
        self.qp.is_none() && !self.is_ending
    }

    /// Removes the connection after its queue pair has been destroyed. Returns its contents, for the caller to drop.
    pub(crate) fn leave(&mut self) -> Contents {
        debug_assert!(self.qp.is_none() && !self.is_ending, "the device may use the memory");
        let next = Slots::new([0, 0], self.slots.next_generation());
        (self.is_taken, self.serial, self.waiting) = (false, 0, [0; 2]);
        (mem::replace(&mut self.slots, next), mem::take(&mut self.arrived), self.words.take())
    }

    /// Returns the port of the queue pair, or `None` if the device does not report it.
    pub(crate) const fn port(&self) -> Option<u8> {
        self.port
    }

    /// Returns true if the connection may depend on `port`. Always true if `port` or the connection's port is `None`.
    pub(crate) fn is_of(&self, port: Option<u8>) -> bool {
        port.is_none() || self.port.is_none() || self.port == port
    }

    pub(crate) const fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    /// Returns the counters of the connection.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        self.counters.snapshot(self.slots.outstanding())
    }

    /// Counts an operation that waits for a slot.
    pub(crate) const fn note_slot_wait(&mut self) {
        self.counters.slot_waits += 1;
    }

    /// Returns the number of requests that the connection can have outstanding.
    pub(crate) const fn depth(&self) -> u32 {
        self.slots.len()
    }

    /// Returns true if the queue pair has to be destroyed, because a request may or may not have been posted.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        matches!(self.closed, Some(CloseReason::Doubtful { .. })) && self.qp.is_some()
    }

    /// Returns why the connection accepts no requests, or `None` while it accepts them.
    pub(crate) const fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Stops accepting requests, and returns the queue pair for the caller to destroy. Keeps an earlier reason.
    pub(crate) fn take(&mut self, reason: CloseReason) -> Option<QueuePair> {
        self.closed.get_or_insert(reason);
        self.is_ending |= self.qp.is_some();
        self.has_refused = false;
        self.qp.take()
    }

    /// Records that the last owner was dropped. Returns true if the queue pair has yet to be destroyed; the thread that
    /// destroys it then frees the entry.
    pub(crate) const fn abandon(&mut self) -> bool {
        self.is_abandoned = self.is_ending || self.qp.is_some();
        self.is_abandoned
    }

    pub(crate) const fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Stops accepting requests. Keeps an earlier reason. The returned work fails operations that wait for a slot.
    pub(crate) fn stop(&mut self, reason: CloseReason) -> After {
        self.closed.get_or_insert(reason);
        self.draining.get_or_insert_with(|| self.slots.sending());
        After::Close(Arc::clone(&self.waiters))
    }

    /// Returns true if the device holds a request of the send queue.
    pub(crate) fn is_sending(&self) -> bool {
        self.slots.is_sending()
    }

    /// Returns true if the connection was [stopped](Self::stop) and its send queue has completed.
    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.draining, Some(0))
    }

    /// Returns true if the connection was [stopped](Self::stop).
    pub(crate) const fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Returns true if a request of the send queue failed, or was outstanding when the queue pair was destroyed.
    pub(crate) const fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Puts back a queue pair that could not be destroyed.
    pub(crate) fn put_back(&mut self, qp: QueuePair) {
        (self.is_ending, self.has_refused) = (false, true);
        self.qp = Some(qp);
    }

    /// Ends all requests after the queue pair has been destroyed. Returns the work to do after the lock is released,
    /// and whether the completion would have been solicited, for each request that was [awaited](Afters::awaited).
    pub(crate) fn end(&mut self) -> (Vec<After>, Vec<bool>) {
        debug_assert!(self.qp.is_none());
        self.is_ending = false;
        self.has_lost |= self.slots.sending() > 0;
        self.draining = None;
        let (mut afters, mut reported) =
            (vec![After::Close(Arc::clone(&self.waiters))], Vec::new());
        for index in 0..self.slots.len() as usize {
            let slot = self.slots.at(index);
            match slot.phase {
                Phase::InFlight => {
                    slot.phase = Phase::Done;
                    slot.result = None;
                    self.counters.failed += 1;
                    if let Some(waker) = slot.waker.take() {
                        reported.push(slot.is_solicited);
                        afters.push(After::Wake(waker));
                    }
                }
                Phase::Detached => {
                    self.counters.failed += 1;
                    reported.push(slot.is_solicited);
                    let side = self.slots.side(index);
                    afters.push(After::Drop(mem::take(self.slots.free(index, side))));
                }
                Phase::Free | Phase::Done => {}
            }
        }
        (afters, reported)
    }

    pub(crate) fn next_arrived(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// Returns the number of operations that wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// Counts an operation that starts or stops waiting for a slot of a queue.
    pub(crate) fn note_waiting(&mut self, side: Side, is_one_more: bool) {
        let waiting = &mut self.waiting[side as usize];
        debug_assert!(is_one_more || *waiting > 0, "an operation waits");
        *waiting = if is_one_more { *waiting + 1 } else { waiting.saturating_sub(1) };
    }

    pub(crate) fn has_words(&self) -> bool {
        self.words.is_some()
    }

    /// Stores the words for the connection's atomic operations, unless it already has some.
    pub(crate) fn give_words(&mut self, words: SharedRegion) {
        if self.words.is_none() {
            self.words = Some(words);
        }
    }

    /// Returns the result of an atomic operation that has succeeded, or 0 for other operations.
    #[inline(always)]
    fn word(&self, operation: Operation, id: Id) -> u64 {
        let words = self.words.as_ref().filter(|_| operation == Operation::Atomic);
        words.map_or(0, |words| post::word(words, id))
    }

    /// Delivers a completion to its request. Returns false if no request has this ID.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        id: Id,
        completion: WorkCompletion,
        afters: &mut Afters,
    ) -> bool {
        let Some(slot) = self.slots.of(id) else { return false };
        let (result, operation) = (completion.result(), slot.operation);
        match slot.phase {
            Phase::InFlight => {
                (slot.phase, slot.result) = (Phase::Done, Some(result));
                if let Some(waker) = slot.waker.take() {
                    afters.note_reported(slot.is_solicited);
                    afters.push(After::Wake(waker));
                }
            }
            Phase::Detached => {
                afters.note_reported(slot.is_solicited);
                self.keep(id, operation, Some(result), afters);
            }
            Phase::Free | Phase::Done => return false,
        }
        if result.is_err() || self.draining.is_some() {
            self.note_end(id, operation, result, afters);
        }
        true
    }

    /// Handles a request that has failed, or that was outstanding when the connection was stopped.
    #[cold]
    fn note_end(&mut self, id: Id, operation: Operation, result: WorkResult, afters: &mut Afters) {
        if let Err(error) = result {
            self.counters.failed += 1;
            self.note_failed(operation, error, afters);
        }
        if let Some(sending) = self.draining
            && self.slots.side(id.slot()) == Side::Send
        {
            self.note_sent(sending, afters);
        }
    }

    /// Counts a completion of the send queue after the connection was stopped. The last one wakes all waiters.
    #[cold]
    fn note_sent(&mut self, sending: u32, afters: &mut Afters) {
        debug_assert!(sending > 0, "a counted request has completed");
        self.draining = Some(sending - 1);
        if sending == 1 {
            afters.push(After::Close(Arc::clone(&self.waiters)));
        }
    }

    /// Records that a request has failed, and the queue pair with it.
    #[cold]
    fn note_failed(&mut self, operation: Operation, error: WorkError, afters: &mut Afters) {
        self.has_lost |= operation != Operation::Receive;
        if self.closed.is_none() {
            self.closed = Some(CloseReason::Work { operation, error });
            // A UC queue pair that is not moved to error would stay usable and keep receiving.
            if let Some(qp) = self.qp.as_ref().filter(|qp| qp.qp_type() == QueuePairType::UC)
                && let Err(error) = qp.to_error()
            {
                tracing::error!(%error, "a queue pair could not be stopped after a failed send: it still receives");
            }
            // Without a wake-up, operations that wait for a slot would wait forever.
            afters.push(After::Close(Arc::clone(&self.waiters)));
        }
    }

    /// Handles a request that ended after its future was dropped. Keeps a message, and releases any other memory.
    fn keep(
        &mut self,
        id: Id,
        operation: Operation,
        result: Option<WorkResult>,
        afters: &mut Afters,
    ) {
        match (mem::take(self.free(id, afters)), result) {
            (mut held, Some(Ok(success))) if operation == Operation::Receive => {
                self.arrived
                    .push_back(Arrived { memory: BufferSlice::take_from(&mut held), success });
            }
            (held, _) => afters.push(After::Drop(held)),
        }
    }

    /// Frees the slot of a request that has ended. Returns its memory, for the caller to take.
    #[inline(always)]
    fn free(&mut self, id: Id, afters: &mut Afters) -> &mut Held {
        let side = self.slots.side(id.slot());
        if self.waiting[side as usize] > 0 {
            self.notify_slot_free(side, afters);
        }
        self.slots.free(id.slot(), side)
    }

    #[cold]
    fn notify_slot_free(&self, side: Side, afters: &mut Afters) {
        afters.push(After::SlotFree(Arc::clone(&self.waiters), side));
    }

    /// Same as [`Table::take`](super::Table::take).
    #[inline(always)]
    pub(crate) fn take_ended<M: Lease>(
        &mut self,
        id: Id,
        memory: &mut Option<M>,
        afters: &mut Afters,
    ) -> Option<Ended> {
        let slot = self.slots.of(id).filter(|slot| slot.phase == Phase::Done)?;
        let (operation, result) = (slot.operation, slot.result);
        put(memory, M::take_from(self.free(id, afters)));
        Some(Ended { operation, result, word: self.word(operation, id) })
    }

    /// Ends a request in flight whose completion was polled. Frees its slot, and moves its memory to `memory`. Returns
    /// `None` if more than this has to be done, as in [`deliver`](Self::deliver).
    #[inline(always)]
    pub(crate) fn end_in_flight<M: Lease>(
        &mut self,
        id: Id,
        success: WorkSuccess,
        memory: &mut Option<M>,
    ) -> Option<Ended> {
        let is_unawaited =
            |slot: &&mut RequestSlot| slot.phase == Phase::InFlight && slot.waker.is_none();
        let slot = self.slots.of(id).filter(is_unawaited)?;
        let (operation, side) = (slot.operation, self.slots.side(id.slot()));
        if !self.is_plain(side) {
            return None;
        }
        put(memory, M::take_from(self.slots.free(id.slot(), side)));
        let word = self.word(operation, id);
        Some(Ended { operation, result: Some(Ok(success)), word })
    }

    /// Returns true if the end of a request that succeeds concerns no one but its owner.
    #[inline(always)]
    const fn is_plain(&self, side: Side) -> bool {
        self.waiting[side as usize] == 0 && self.draining.is_none()
    }

    /// Records that the peer has closed the connection, which explains a failed request.
    pub(crate) fn note_gone(&mut self, reason: CloseReason) {
        if let Some(CloseReason::Work { .. }) = self.closed {
            self.closed = Some(reason);
        }
    }

    /// Returns the error of a request that failed or ended with its queue pair.
    #[cold]
    pub(crate) fn failure(&self, operation: Operation, error: Option<WorkError>) -> TransportError {
        match (error, self.closed.or(self.ended_before)) {
            // A flushed request gets the reason of the flush. Exhausted retries get the reason why the peer closed,
            // because a closed peer does not acknowledge.
            (Some(error), Some(reason))
                if error.class() == WorkErrorClass::Flushed
                    || reason.is_of_peer() && error.code() == WorkErrorCode::RetryExceededError =>
            {
                super::closed(reason, self.peer)
            }
            (Some(error), _) => post::failed(operation, self.peer, error, self.qp.as_ref()),
            (None, reason) => super::closed(reason.unwrap_or(CloseReason::Destroyed), self.peer),
        }
    }

    pub(crate) fn is_in_flight(&mut self, id: Id) -> bool {
        self.slots.of(id).is_some_and(|slot| slot.phase == Phase::InFlight)
    }

    /// Returns true if the request is in flight and this waker is woken when it ends. May return false for a clone of
    /// the waker.
    pub(crate) fn is_awaited_by(&mut self, id: Id, waker: &Waker) -> bool {
        let slot = self.slots.of(id).filter(|slot| slot.phase == Phase::InFlight);
        slot.and_then(|slot| slot.waker.as_ref()).is_some_and(|known| known.will_wake(waker))
    }

    /// Sets the waker of a request in flight. Returns the previous waker, or `waker` if the request has ended.
    /// `is_solicited` states whether the peer makes the completion solicited.
    pub(crate) fn await_end(
        &mut self,
        id: Id,
        waker: Waker,
        is_solicited: bool,
        afters: &mut Afters,
    ) -> Option<Waker> {
        match self.slots.of(id) {
            Some(slot) if slot.phase == Phase::InFlight => {
                let before = slot.waker.replace(waker);
                if before.is_none() {
                    slot.is_solicited = is_solicited;
                    afters.awaited += 1;
                    afters.solicited += usize::from(is_solicited);
                }
                before
            }
            _ => Some(waker),
        }
    }

    /// Same as [`Table::detach`](super::Table::detach).
    pub(crate) fn detach(&mut self, id: Id, afters: &mut Afters) -> Option<Operation> {
        let slot = self.slots.of(id)?;
        let (operation, result) = (slot.operation, slot.result);
        let goes_on = (slot.phase == Phase::InFlight).then_some(operation);
        match slot.phase {
            Phase::InFlight => {
                slot.phase = Phase::Detached;
                match slot.waker.take() {
                    Some(waker) => afters.push(After::DropWaker(waker)),
                    None => {
                        slot.is_solicited = false;
                        afters.awaited += 1;
                    }
                }
            }
            Phase::Done => {
                self.keep(id, operation, result, afters);
            }
            Phase::Free | Phase::Detached => {}
        }
        goes_on
    }
}

/// Sets a value that was `None`, and so needs no drop.
#[inline(always)]
fn put<M>(place: &mut Option<M>, value: Option<M>) {
    debug_assert!(place.is_none());
    let _ = ManuallyDrop::new(mem::replace(place, value));
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let Some(Err((qp, error))) = self.qp.take().map(QueuePair::close) else { return };
        let is_forked = qp.pd().context().check_process().is_err();
        #[allow(clippy::mem_forget)] // the device may use it
        mem::forget((qp, mem::take(&mut self.slots), self.words.take()));
        if !is_forked {
            tracing::error!(%error, "a queue pair could not be destroyed: its memory is never released");
        }
    }
}
