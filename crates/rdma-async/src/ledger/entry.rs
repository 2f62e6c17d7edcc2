//! One connection in its ledger: its queue pair, and the slots of its requests.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use rdma_connect::{CloseReason, ConnectionCounters, Operation, PeerAddress, TransportError};
use rdma_mem::{AccessFlags, SharedRegion};
use rdma_qp::{
    Qpn, QueuePair, QueuePairType, WorkCompletion, WorkError, WorkErrorClass, WorkErrorCode,
    WorkResult, WorkSuccess,
};

use super::Ended;
use super::after::{After, Afters, apart};
use super::post::{self, PostFailure, RequestSpec};
use super::slots::{Id, Phase, Side, Slots};
use crate::buffer::held::Held;
use crate::buffer::held::sealed::Lease;
use crate::buffer::view::BufferSlice;
use crate::sync::Notify;

/// The waiters for a free slot of a connection. They are woken one by one, and pass on a wake-up that they do not need.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    sends: Arc<Notify>,
    receives: Arc<Notify>,
    /// Notified when the connection is closed, or its last request has completed.
    ended: Notify,
    /// Notified at the same time: the task of the control connection.
    control: OnceLock<Arc<Notify>>,
}

impl Rooms {
    pub(crate) const fn of(&self, side: Side) -> &Arc<Notify> {
        match side {
            Side::Send => &self.sends,
            Side::Receive => &self.receives,
        }
    }

    /// Wakes all waiters: the connection is closed, or its last send has completed.
    pub(crate) fn close(&self) {
        apart(|| self.sends.notify_waiters());
        apart(|| self.receives.notify_waiters());
        apart(|| self.ended.notify_waiters());
        if let Some(control) = self.control.get() {
            control.notify_one();
        }
    }

    /// Returns what is notified when the connection is closed, or its last request has completed.
    pub(crate) const fn ended(&self) -> &Notify {
        &self.ended
    }

    /// Sets what [`close`](Self::close) notifies in addition.
    pub(crate) fn set_control(&self, control: &Arc<Notify>) {
        let _ = self.control.set(Arc::clone(control));
    }
}

/// A message that has come into memory that nobody waits for.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// `None` of a receive without memory.
    pub(crate) memory: Option<BufferSlice>,
    pub(crate) success: WorkSuccess,
}

/// An entry of a ledger, with a connection or without.
///
/// The device may use what the slots hold until the queue pair is destroyed. So that comes first, and if it cannot be,
/// the slots are never dropped (SAFETY.md F28).
#[derive(Debug, Default)]
pub(crate) struct ConnectionEntry {
    qp: Option<QueuePair>,
    slots: Slots,
    /// Where atomic operations put what the peer's words were, one word for each slot. Made when the first is needed.
    words: Option<SharedRegion>,
    /// Which of all connections that the ledger has had it is; 0 if it is none.
    pub(crate) serial: u64,
    /// Which of its queue pairs it has, or has had last.
    pub(crate) epoch: u32,
    pub(crate) qpn: Qpn,
    pub(crate) peer: Option<PeerAddress>,
    /// Which port it uses; `None` if the device does not say.
    port: Option<u8>,
    closed: Option<CloseReason>,
    /// Why the queue pair has ended that was here before.
    ended_before: Option<CloseReason>,
    /// It takes no more requests, and is closed when those of its send queue are over: so many are with the device.
    draining: Option<u32>,
    /// A request of the send queue has failed, or was still with the device when the queue pair was destroyed.
    has_lost: bool,
    /// The provider refuses to destroy the queue pair.
    has_refused: bool,
    /// Another queue pair is on its way, and nobody has asked for an end since.
    awaits_another: bool,
    /// What came for receives that were dropped, in order.
    arrived: VecDeque<Arrived>,
    /// How many wait for a slot of each queue.
    waiting: [usize; 2],
    rooms: Arc<Rooms>,
    /// `completed` is only set in a snapshot.
    counters: ConnectionCounters,
    is_taken: bool,
    /// The queue pair was [given out](Self::take), and is not destroyed yet.
    is_ending: bool,
    /// Nobody has the connection any more, and who destroys the queue pair frees the entry.
    is_abandoned: bool,
}

/// What a connection has had: given back when it is dropped.
pub(crate) type Left = (Slots, VecDeque<Arrived>, Option<SharedRegion>);

impl ConnectionEntry {
    pub(crate) const fn is_empty(&self) -> bool {
        !self.is_taken
    }

    /// A connection comes here.
    pub(crate) fn enter(
        &mut self,
        qp: (QueuePair, Option<u8>),
        serial: u64,
        depth: [u32; 2],
        rooms: Arc<Rooms>,
    ) {
        debug_assert!(self.is_empty());
        self.slots = Slots::new(depth, self.slots.next_generation());
        (self.rooms, self.closed) = (rooms, None);
        (self.waiting, self.is_taken, self.is_abandoned) = ([0; 2], true, false);
        (self.serial, self.counters) = (serial, ConnectionCounters::default());
        self.renew(qp, 0);
    }

    /// Another queue pair comes, behind one that was destroyed. What has ended with that one is still in its slots, and
    /// those of futures that were forgotten stay with them.
    pub(crate) fn renew(&mut self, (qp, port): (QueuePair, Option<u8>), epoch: u32) {
        debug_assert!(self.is_taken && self.is_gone());
        (self.ended_before, self.epoch) = (self.closed.take(), epoch);
        (self.qpn, self.peer, self.port) = (qp.qpn(), qp.peer().map(PeerAddress::from), port);
        (self.qp, self.draining) = (Some(qp), None);
        (self.has_lost, self.has_refused, self.awaits_another) = (false, false, false);
    }

    /// Another queue pair is on its way.
    pub(crate) const fn await_another(&mut self) {
        self.awaits_another = true;
    }

    /// Somebody has asked for an end: no other queue pair comes that is on its way.
    pub(crate) const fn await_no_other(&mut self) {
        self.awaits_another = false;
    }

    /// Whether another queue pair can come.
    pub(crate) const fn takes_another(&self) -> bool {
        self.is_gone() && self.awaits_another
    }

    /// Whether the provider has refused to destroy the queue pair, and nobody has tried again since.
    pub(crate) const fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Whether the queue pair is about to be destroyed by somebody.
    pub(crate) const fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Its queue pair was destroyed, and nothing is with the device.
    pub(crate) const fn is_gone(&self) -> bool {
        self.qp.is_none() && !self.is_ending
    }

    /// The connection has left, after its queue pair was destroyed. What it had is dropped by the caller.
    pub(crate) fn leave(&mut self) -> Left {
        debug_assert!(self.qp.is_none() && !self.is_ending, "the device may use the memory");
        let next = Slots::new([0, 0], self.slots.next_generation());
        (self.is_taken, self.serial, self.waiting) = (false, 0, [0; 2]);
        (mem::replace(&mut self.slots, next), mem::take(&mut self.arrived), self.words.take())
    }

    /// Which port it uses; `None` if the device does not say.
    pub(crate) const fn port(&self) -> Option<u8> {
        self.port
    }

    /// Whether it depends on that port, or on any.
    pub(crate) fn is_of(&self, port: Option<u8>) -> bool {
        port.is_none() || self.port.is_none() || self.port == port
    }

    pub(crate) const fn rooms(&self) -> &Arc<Rooms> {
        &self.rooms
    }

    /// Returns the counters of the connection.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        self.counters.snapshot(self.slots.outstanding())
    }

    /// Counts an operation that waits for a slot.
    pub(crate) const fn note_slot_wait(&mut self) {
        self.counters.slot_waits += 1;
    }

    /// How many requests it can have outstanding.
    pub(crate) const fn depth(&self) -> u32 {
        self.slots.len()
    }

    /// A request is in doubt: the queue pair has to be destroyed.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        matches!(self.closed, Some(CloseReason::Doubtful { .. })) && self.qp.is_some()
    }

    /// Why it takes no more requests, if it does not.
    pub(crate) const fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Takes no more requests, for that reason if there was none, and gives the queue pair out, to be destroyed.
    pub(crate) fn take(&mut self, reason: CloseReason) -> Option<QueuePair> {
        self.closed.get_or_insert(reason);
        self.is_ending |= self.qp.is_some();
        self.has_refused = false;
        self.qp.take()
    }

    /// Nobody has the connection any more. Whether another thread is about to destroy its queue pair, and frees the entry
    /// then.
    pub(crate) const fn abandon(&mut self) -> bool {
        self.is_abandoned = self.is_ending || self.qp.is_some();
        self.is_abandoned
    }

    pub(crate) const fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Takes no more requests, for that reason if there was none. Who waits for a slot waits in vain.
    pub(crate) fn stop(&mut self, reason: CloseReason) -> After {
        self.closed.get_or_insert(reason);
        self.draining.get_or_insert_with(|| self.slots.sending());
        After::Close(Arc::clone(&self.rooms))
    }

    /// Whether a request of its send queue is with the device.
    pub(crate) fn is_sending(&self) -> bool {
        self.slots.is_sending()
    }

    /// Whether it takes no more requests, and none of its send queue is with the device.
    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.draining, Some(0))
    }

    /// Whether it was [stopped](Self::stop).
    pub(crate) const fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Whether something of what was sent has failed, or was not done when the queue pair was destroyed.
    pub(crate) const fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// The queue pair could not be destroyed.
    pub(crate) fn put_back(&mut self, qp: QueuePair) {
        (self.is_ending, self.has_refused) = (false, true);
        self.qp = Some(qp);
    }

    /// Its queue pair was destroyed: all its requests are over. What is to be done then, without the lock.
    /// And how many of them were [awaited](Afters::awaited).
    pub(crate) fn end(&mut self) -> (Vec<After>, usize) {
        debug_assert!(self.qp.is_none());
        self.is_ending = false;
        self.has_lost |= self.slots.sending() > 0;
        self.draining = None;
        let (mut afters, mut reported) = (vec![After::Close(Arc::clone(&self.rooms))], 0);
        for index in 0..self.slots.len() as usize {
            let slot = self.slots.at(index);
            match slot.phase {
                Phase::InFlight => {
                    slot.phase = Phase::Done;
                    slot.result = None;
                    self.counters.failed += 1;
                    reported += usize::from(slot.waker.is_some());
                    afters.extend(slot.waker.take().map(After::Wake));
                }
                Phase::Forsaken => {
                    self.counters.failed += 1;
                    reported += 1;
                    let mut held = Held::Nothing;
                    self.slots.free(index, &mut held);
                    afters.push(After::Drop(held));
                }
                Phase::Free | Phase::Done => {}
            }
        }
        (afters, reported)
    }

    pub(crate) fn next_arrived(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// How many wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// One more waits for a slot of a queue, or one less.
    pub(crate) fn note_waiting(&mut self, side: Side, is_one_more: bool) {
        let waiting = &mut self.waiting[side as usize];
        debug_assert!(is_one_more || *waiting > 0, "somebody waits");
        *waiting = if is_one_more { *waiting + 1 } else { waiting.saturating_sub(1) };
    }

    pub(crate) fn has_words(&self) -> bool {
        self.words.is_some()
    }

    /// Words for its atomic operations, unless there are.
    pub(crate) fn give_words(&mut self, words: SharedRegion) {
        if self.words.is_none() {
            self.words = Some(words);
        }
    }

    /// Posts a request, whose memory is in its slot from before that.
    ///
    /// # Errors
    /// Then the memory is where it was. [`TransportError::Closed`], or why the request was refused, unless no slot is free.
    #[inline]
    pub(crate) fn post(
        &mut self,
        entry: usize,
        request: &RequestSpec,
        memory: &mut Held,
    ) -> Result<Id, PostFailure> {
        let (operation, side) = (request.operation(), request.side());
        let free = self.slots.first_free(side).filter(|_| self.closed.is_none());
        let (Some(index), Some(qp)) = (free, &self.qp) else {
            return Err(self.refusal(side));
        };
        let (id, held) = self.slots.fill(entry, index, operation, memory);
        // SAFETY: SAFETY.md F28: the memory of the request is in its slot, from before the post, and is taken out when the
        // request has completed or the queue pair was destroyed. Until then nobody else has it, or, if it is shared, nobody
        // writes it. The word of an atomic operation is of its slot. A window that was bound keeps its region, and shows nothing of it,
        // until it is not bound any more.
        match unsafe { post::post(qp, request, held, self.words.as_ref(), id) } {
            Ok(()) => {}
            // The provider refused, and did not say whether it had posted it: the slot keeps the memory until the queue
            // pair is destroyed, which the caller does.
            Err(error) if error.posted() > 0 => {
                self.closed.get_or_insert(CloseReason::Doubtful { operation });
            }
            Err(error) => {
                self.slots.free(id.slot(), memory);
                let error = post::refused(operation, self.peer, error);
                return Err(PostFailure::Failed(error.into()));
            }
        }
        self.counters.posted += 1;
        Ok(id)
    }

    /// Why it takes no request now.
    #[cold]
    fn refusal(&self, side: Side) -> PostFailure {
        match self.closed {
            Some(reason) => PostFailure::Failed(super::closed(reason, self.peer).into()),
            // There will never be one.
            None if self.slots.has_none(side) => {
                PostFailure::Failed(TransportError::WouldBlock.into())
            }
            None => PostFailure::NoSlot,
        }
    }

    /// Brings a completion to its request. Whether it is one of a request that is there.
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
                    afters.note_reported(1);
                    afters.push(After::Wake(waker));
                }
            }
            Phase::Forsaken => {
                afters.note_reported(1);
                self.keep(id, operation, Some(result), afters);
            }
            Phase::Free | Phase::Done => return false,
        }
        if result.is_err() || self.draining.is_some() {
            self.note_over(id, operation, result, afters);
        }
        true
    }

    /// A request has failed, or is over that was outstanding when the connection was stopped.
    #[cold]
    fn note_over(&mut self, id: Id, operation: Operation, result: WorkResult, afters: &mut Afters) {
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

    /// A request of the send queue is over which was outstanding when the connection was stopped.
    #[cold]
    fn note_sent(&mut self, sending: u32, afters: &mut Afters) {
        debug_assert!(sending > 0, "it is one of them");
        self.draining = Some(sending - 1);
        if sending == 1 {
            afters.push(After::Close(Arc::clone(&self.rooms)));
        }
    }

    /// A request has failed, and the queue pair with it.
    #[cold]
    fn note_failed(&mut self, operation: Operation, error: WorkError, afters: &mut Afters) {
        self.has_lost |= operation != Operation::Receive;
        if self.closed.is_none() {
            self.closed = Some(CloseReason::Work { operation, error });
            // An unreliable connection would go on to wait for messages.
            if let Some(qp) = self.qp.as_ref().filter(|qp| qp.qp_type() == QueuePairType::UC)
                && let Err(error) = qp.to_error()
            {
                tracing::error!(%error, "a queue pair whose send has failed goes on to receive");
            }
            // Who waits for a slot waits in vain.
            afters.push(After::Close(Arc::clone(&self.rooms)));
        }
    }

    /// A request is over for which nobody waits: a message is kept, and other memory given back.
    fn keep(
        &mut self,
        id: Id,
        operation: Operation,
        result: Option<WorkResult>,
        afters: &mut Afters,
    ) {
        let mut held = Held::Nothing;
        self.free(id, &mut held, afters);
        match (held, result) {
            (held, Some(Ok(success))) if operation == Operation::Receive => {
                self.arrived.push_back(Arrived { memory: BufferSlice::from_held(held), success });
            }
            (held, _) => afters.push(After::Drop(held)),
        }
    }

    /// Frees the slot of a request that is over. Its memory comes where nothing was.
    #[inline]
    fn free(&mut self, id: Id, memory: &mut Held, afters: &mut Afters) {
        let side = self.slots.side(id.slot());
        self.slots.free(id.slot(), memory);
        if self.waiting[side as usize] > 0 {
            self.notify_room(side, afters);
        }
    }

    #[cold]
    fn notify_room(&self, side: Side, afters: &mut Afters) {
        afters.push(After::Room(Arc::clone(&self.rooms), side));
    }

    /// As [`Table::take`](super::Table::take).
    #[inline]
    pub(crate) fn take_ended(
        &mut self,
        id: Id,
        memory: &mut Held,
        afters: &mut Afters,
    ) -> Option<Ended> {
        let slot = self.slots.of(id).filter(|slot| slot.phase == Phase::Done)?;
        let (operation, result) = (slot.operation, slot.result);
        self.free(id, memory, afters);
        let word = match operation {
            Operation::Atomic => self.words.as_ref().map_or(0, |words| post::word(words, id)),
            _ => 0,
        };
        Some(Ended { operation, result, word })
    }

    /// The peer has gone, which is why a request has failed.
    pub(crate) fn note_gone(&mut self, reason: CloseReason) {
        if let Some(CloseReason::Work { .. }) = self.closed {
            self.closed = Some(reason);
        }
    }

    /// Why a request has failed, or was over with its queue pair.
    #[cold]
    pub(crate) fn failure(&self, operation: Operation, error: Option<WorkError>) -> TransportError {
        match (error, self.closed.or(self.ended_before)) {
            // Of what was flushed, why it was. A peer that has gone answers nothing.
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

    /// Whether that waker is woken when the request ends; then it is not over.
    pub(crate) fn is_awaited_by(&mut self, id: Id, waker: &Waker) -> bool {
        let slot = self.slots.of(id).filter(|slot| slot.phase == Phase::InFlight);
        slot.and_then(|slot| slot.waker.as_ref()).is_some_and(|known| known.will_wake(waker))
    }

    /// Who is to be woken when the request has ended. The waker that was there before.
    pub(crate) fn await_end(&mut self, id: Id, waker: Waker, afters: &mut Afters) -> Option<Waker> {
        match self.slots.of(id) {
            Some(slot) if slot.phase == Phase::InFlight => {
                let before = slot.waker.replace(waker);
                afters.awaited += usize::from(before.is_none());
                before
            }
            _ => Some(waker),
        }
    }

    /// As [`Table::forsake`](super::Table::forsake).
    pub(crate) fn forsake(&mut self, id: Id, afters: &mut Afters) -> Option<Operation> {
        let slot = self.slots.of(id)?;
        let (operation, result) = (slot.operation, slot.result);
        let goes_on = (slot.phase == Phase::InFlight).then_some(operation);
        match slot.phase {
            Phase::InFlight => {
                slot.phase = Phase::Forsaken;
                match slot.waker.take() {
                    Some(waker) => afters.push(After::DropWaker(waker)),
                    None => afters.awaited += 1,
                }
            }
            Phase::Done => {
                self.keep(id, operation, result, afters);
            }
            Phase::Free | Phase::Forsaken => {}
        }
        goes_on
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let Some(Err((qp, error))) = self.qp.take().map(QueuePair::close) else { return };
        let is_forked = qp.pd().context().check_process().is_err();
        #[allow(clippy::mem_forget)] // the device may use it
        mem::forget((qp, mem::take(&mut self.slots), self.words.take()));
        if !is_forked {
            tracing::error!(%error, "a queue pair could not be destroyed: its memory is never given back");
        }
    }
}

/// Words for so many slots.
///
/// # Errors
/// If they cannot be registered.
pub(crate) fn words(
    pd: &rdma_mem::ProtectionDomain,
    slots: u32,
) -> Result<SharedRegion, TransportError> {
    let access = AccessFlags::new().with_local_write();
    Ok(pd.allocate_shared_region(slots as usize * post::WORD, access)?)
}
