//! Queue pairs that share a completion queue, and the table of their requests.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::{Duration, Instant};

use rdma_mem::ProtectionDomain;
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, PollSlot, PostError, QueuePair, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WorkRequest, WriteWorkRequest,
};

use crate::lane::{Asked, Lane, Lanes, Ring};
use crate::limits::Limits;
use crate::patience::Patience;
use crate::slot::{Slot, State, index};
use crate::table::Table;
use crate::ticket::Ticket;
use crate::{CloseReason, Operation, TransportError};

/// What all forms of operations stand on.
///
/// Each request has a slot until its completion was polled and its handle has told so, or is gone. There are
/// as many slots as the queues hold requests, and the completion queue holds one completion of each: so
/// nothing can overflow.
#[derive(Debug)]
pub(crate) struct Core {
    /// Dropped, and destroyed, before the completion queue.
    pub(crate) lanes: Lanes,
    /// The first is dead, then come those of each lane: its send queue, its receive queue.
    pub(crate) table: Table,
    pub(crate) cq: CompletionQueue,
    /// For completions that can be of any request.
    rooms: Box<[Cell<PollSlot>; MANY]>,
    /// How many requests were posted whose handles have not given their slots back. 0 if a scope has nothing to
    /// end. Of 64 bits, so that no scope lasts until it is 0 again.
    pub(crate) live: Cell<u64>,
    /// How many of these have succeeded without a handle, so that their slots are free.
    pub(crate) over: Cell<u64>,
    /// How many requests are abandoned, or have been and are over, that no handle of this scope was of.
    pub(crate) strangers: Cell<u64>,
    /// The id of a request that was refused, and may be with the device all the same; else 0.
    pub(crate) doubtful: Cell<u64>,
    /// The id of a request that a call had to wait for room for, and the end of that call.
    pub(crate) begun: Cell<(u64, Option<Instant>)>,
    /// How many completions were of no request of the table.
    pub(crate) strays: Cell<u64>,
    pub(crate) limits: Limits,
    pub(crate) pd: ProtectionDomain,
}

/// How long a post waits for room in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// Not at all.
    Now,
    /// As long as operations of its kind may take.
    Usual,
    /// As part of a call that may take so long, or else as long as operations of its kind may.
    Call(Option<Duration>),
}

/// To, or from, which peer.
pub(crate) trait To {
    fn lane(self, core: &Core) -> Result<&Lane, TransportError>;
}

/// The peer of a channel that has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Only;

impl To for Only {
    #[inline(always)]
    fn lane(self, core: &Core) -> Result<&Lane, TransportError> {
        Ok(core.only())
    }
}

impl To for usize {
    #[inline(always)]
    fn lane(self, core: &Core) -> Result<&Lane, TransportError> {
        core.lane(self)
    }
}

/// A request of the send queue, which can be unsignaled.
pub(crate) trait SendRequest: WorkRequest {
    fn is_signaled(&self) -> bool;
    fn made_signaled(self) -> Self;
}

macro_rules! send_requests {
    ($($request:ident)+) => {$(
        impl SendRequest for $request<'_, '_> {
            #[inline(always)]
            fn is_signaled(&self) -> bool {
                Self::is_signaled(self)
            }

            #[inline(always)]
            fn made_signaled(self) -> Self {
                self.signaled(true)
            }
        }
    )+};
}

send_requests!(SendWorkRequest WriteWorkRequest ReadWorkRequest AtomicWorkRequest);

/// How many completions are taken at a time where it is not known how many will come.
const MANY: usize = 16;

impl Core {
    /// The table for queue pairs of that domain whose queues hold at least so many requests each, to send and
    /// to receive, and which all complete in `cq`, which holds one completion of each of these. The builder has seen
    /// to it that these are no more than can be told apart.
    pub(crate) fn new(
        cq: CompletionQueue,
        qps: Vec<QueuePair>,
        asked: Asked,
        limits: Limits,
        pd: ProtectionDomain,
    ) -> Self {
        let of_each = asked.sends + asked.receives;
        let slots = (0..).zip(&qps).flat_map(|(lane, _)| {
            let first = 1 + lane * of_each;
            (first..first + of_each).map(move |index| Slot::new(index, lane))
        });
        let table = Table::new(slots);
        let mut first = 1;
        let lanes = qps.into_iter().map(|qp| {
            let lane = Lane::new(Some(qp), &table, first, asked);
            first += of_each;
            lane
        });
        Self {
            lanes: Lanes::new(lanes, &table),
            table,
            cq,
            rooms: Box::default(),
            live: Cell::new(0),
            over: Cell::new(0),
            strangers: Cell::new(0),
            doubtful: Cell::new(0),
            begun: Cell::new((0, None)),
            strays: Cell::new(0),
            limits,
            pd,
        }
    }

    /// The queue pair to that peer.
    #[inline(always)]
    pub(crate) fn lane(&self, peer: usize) -> Result<&Lane, TransportError> {
        match self.lanes.get(peer) {
            Some(lane) => Ok(lane),
            // Not made beforehand: an error that is not needed would be dropped.
            None => Err(TransportError::NoSuchPeer { peer, count: self.lanes.len() }),
        }
    }

    /// As [`lane`](Self::lane), if it is not destroyed.
    pub(crate) fn qp(&self, peer: usize) -> Result<&QueuePair, TransportError> {
        let lane = self.lane(peer)?;
        lane.qp().ok_or_else(|| closed(lane))
    }

    /// The queue pair of a channel, which has one.
    #[inline(always)]
    pub(crate) const fn only(&self) -> &Lane {
        &self.lanes.first
    }

    /// The slot for the next request of a queue, with the queue pair, if no more has to be looked at.
    #[inline(always)]
    fn at_hand<'c>(&'c self, lane: &'c Lane, ring: &Ring) -> Option<(&'c Slot, &'c QueuePair)> {
        // SAFETY: SAFETY.md F23: of this core's table.
        let slot = unsafe { ring.cursor().slot() };
        if slot.state.get() != State::FREE {
            return None;
        }
        // SAFETY: SAFETY.md F23: a free slot is at the cursor.
        Some((slot, unsafe { lane.open_qp() }))
    }

    /// Posts a request to the send queue.
    ///
    /// # Safety
    /// As of [`QueuePair::post`]. The request has completed when its slot says so; after an error too it
    /// may be with the device, if its slot is in flight.
    #[inline(always)]
    pub(crate) unsafe fn post<'c, R: SendRequest>(
        &'c self,
        lane: &'c Lane,
        operation: Operation,
        request: R,
        room: Room,
    ) -> Result<Ticket<'c>, TransportError> {
        let slot = if request.is_signaled()
            && let Some((slot, qp)) = self.at_hand(lane, &lane.send)
        {
            // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract.
            match unsafe { qp.post(request, slot.id.get()) } {
                Ok(()) => {
                    lane.send.advance(slot.next.get());
                    self.posted(slot, operation);
                    slot
                }
                Err(error) => {
                    let signaled = Some(true);
                    let refused = move || self.refused(lane, slot, operation, signaled, error);
                    return Err(seldom(refused));
                }
            }
        } else {
            // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
            seldom(move || unsafe { self.post_slowly(lane, operation, request, room) })?
        };
        Ok(Ticket::new(self, slot))
    }

    /// As [`post`](Self::post), if there is no free slot at hand, or some request is silent.
    ///
    /// # Safety
    /// As there.
    unsafe fn post_slowly<'c, R: SendRequest>(
        &'c self,
        lane: &'c Lane,
        operation: Operation,
        request: R,
        room: Room,
    ) -> Result<&'c Slot, TransportError> {
        let (slot, qp) = self.take_within(lane, &lane.send, operation, room)?;
        let signaled = request.is_signaled() || lane.has_to_signal(lane.run.get());
        let request = if signaled { request.made_signaled() } else { request };
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract.
        if let Err(error) = unsafe { qp.post(request, slot.id.get()) } {
            return Err(self.refused(lane, slot, operation, Some(signaled), error));
        }
        self.posted(slot, operation);
        self.link(lane, slot, signaled);
        Ok(slot)
    }

    /// As [`post`](Self::post), to that peer.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn post_to<R: SendRequest>(
        &self,
        to: impl To,
        operation: Operation,
        request: R,
        room: Room,
    ) -> Result<Ticket<'_>, TransportError> {
        let lane = to.lane(self)?;
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        unsafe { self.post(lane, operation, request, room) }
    }

    /// As [`post_receive`](Self::post_receive), from that peer.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn post_receive_from(
        &self,
        from: impl To,
        request: ReceiveWorkRequest<'_, '_>,
        room: Room,
    ) -> Result<Ticket<'_>, TransportError> {
        let lane = from.lane(self)?;
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        unsafe { self.post_receive(lane, request, room) }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// As of [`post`](Self::post).
    #[inline(always)]
    pub(crate) unsafe fn post_receive<'c>(
        &'c self,
        lane: &'c Lane,
        request: ReceiveWorkRequest<'_, '_>,
        room: Room,
    ) -> Result<Ticket<'c>, TransportError> {
        let slot = if let Some((slot, qp)) = self.at_hand(lane, &lane.receive) {
            // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract.
            match unsafe { qp.post(request, slot.id.get()) } {
                Ok(()) => {
                    lane.receive.advance(slot.next.get());
                    self.posted(slot, Operation::Receive);
                    slot
                }
                Err(error) => {
                    let refused = move || self.refused(lane, slot, Operation::Receive, None, error);
                    return Err(seldom(refused));
                }
            }
        } else {
            // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
            seldom(move || unsafe { self.post_receive_slowly(lane, request, room) })?
        };
        Ok(Ticket::new(self, slot))
    }

    /// As [`post_receive`](Self::post_receive), if there is no free slot at hand.
    ///
    /// # Safety
    /// As there.
    unsafe fn post_receive_slowly<'c>(
        &'c self,
        lane: &'c Lane,
        request: ReceiveWorkRequest<'_, '_>,
        room: Room,
    ) -> Result<&'c Slot, TransportError> {
        let (slot, qp) = self.take_within(lane, &lane.receive, Operation::Receive, room)?;
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract.
        if let Err(error) = unsafe { qp.post(request, slot.id.get()) } {
            return Err(self.refused(lane, slot, Operation::Receive, None, error));
        }
        self.posted(slot, Operation::Receive);
        Ok(slot)
    }

    /// As [`take`](Self::take), as long as `room` says.
    fn take_within<'c>(
        &'c self,
        lane: &'c Lane,
        ring: &Ring,
        operation: Operation,
        room: Room,
    ) -> Result<(&'c Slot, &'c QueuePair), TransportError> {
        let timeout = match room {
            Room::Now => None,
            Room::Usual | Room::Call(None) => Some(self.limits.of(operation)),
            Room::Call(timeout) => timeout,
        };
        let mut patience = timeout.and_then(Patience::for_room);
        let taken = self.take(lane, ring, operation, patience.as_mut());
        if let (Room::Call(_), Some(patience)) = (room, patience) {
            match &taken {
                Ok((slot, _)) => self.begun.set((slot.id.get(), patience.end())),
                Err(TransportError::Timeout { .. }) => {
                    lane.close(CloseReason::Timeout { operation });
                }
                Err(_) => {}
            }
        }
        taken
    }

    /// The slot for the next request of a queue, and the queue pair. Waits for one as long as there is patience.
    pub(crate) fn take<'c>(
        &'c self,
        lane: &'c Lane,
        ring: &Ring,
        operation: Operation,
        mut patience: Option<&mut Patience>,
    ) -> Result<(&'c Slot, &'c QueuePair), TransportError> {
        loop {
            let (None, Some(qp)) = (lane.closed.get(), lane.qp()) else {
                return Err(closed(lane));
            };
            if let Some(slot) = self.free_slot(lane, ring) {
                lane.advance(ring, slot.next.get());
                return Ok((slot, qp));
            }
            // Those that are done wait for their handles, and silent ones for a later one: nothing that
            // happens here helps them.
            let helps = |state: State| state.is_in_flight() && !state.is_silent();
            let helps = self.slots(ring).iter().any(|slot| helps(slot.state.get()));
            if self.progress()? == 0 {
                let patience = patience.as_mut().filter(|_| helps);
                let Some(patience) = patience else { return Err(TransportError::WouldBlock) };
                if patience.is_over() {
                    let timeout = patience.limit();
                    return Err(TransportError::Timeout { operation, timeout });
                }
                if patience.is_long() {
                    self.check_process()?;
                }
            }
        }
    }

    /// The one that is next, or else any.
    fn free_slot(&self, lane: &Lane, ring: &Ring) -> Option<&Slot> {
        // SAFETY: SAFETY.md F23: of this core's table.
        let next = unsafe { lane.next(ring).slot() };
        let free = |slot: &&Slot| slot.state.get() == State::FREE;
        Some(next).filter(free).or_else(|| self.slots(ring).iter().find(free))
    }

    /// All slots of a queue.
    pub(crate) fn slots(&self, ring: &Ring) -> &[Slot] {
        self.table.get(ring.slots()).unwrap_or_default()
    }

    /// Notes a request that is with the device.
    #[inline(always)]
    pub(crate) fn posted(&self, slot: &Slot, operation: Operation) {
        self.live.set(self.live.get() + 1);
        slot.operation.set(operation);
        // The last, so that who looks next knows what is there.
        slot.state.set(State::IN_FLIGHT);
    }

    /// Notes of a request of the send queue whether it is silent. If it is not, its completion tells of the silent
    /// ones before it.
    #[cold]
    pub(crate) fn link(&self, lane: &Lane, slot: &Slot, signaled: bool) {
        let silent = lane.silent.get();
        slot.link.set(silent);
        if !signaled {
            slot.state.set(State::IN_FLIGHT.silent());
            lane.begin_silence(slot.id.get());
        } else if silent != 0 {
            slot.state.set(State::IN_FLIGHT.linked());
            lane.end_silence();
        }
    }

    /// What a refused post has left behind. Of a request of the send queue, whether it was signaled.
    #[cold]
    #[inline(never)]
    fn refused(
        &self,
        lane: &Lane,
        slot: &Slot,
        operation: Operation,
        signaled: Option<bool>,
        error: PostError,
    ) -> TransportError {
        // Its id is that of the next request in its slot too, which has its own time.
        self.begun.set((0, None));
        if error.posted() > 0 {
            // Perhaps it is with the device: so its slot waits as if it were.
            self.posted(slot, operation);
            if let Some(signaled) = signaled {
                self.link(lane, slot, signaled);
            }
            slot.state.set(slot.state.get().abandoned());
            self.doubtful.set(slot.id.get());
            self.strangers.set(self.strangers.get() + 1);
        }
        error.into()
    }

    /// Takes completions, as many as there are. How many were of requests under way: others, from a device
    /// that makes them up, keep nobody waiting.
    pub(crate) fn progress(&self) -> Result<usize, TransportError> {
        let polled = self.cq.poll_into(&*self.rooms).map_err(|error| self.poll_failed(error))?;
        let (mut strays, mut others, mut likely) = (0, 0, &self.table[0]);
        for room in self.rooms.get(..polled).unwrap_or_default() {
            let completion = room.get().last();
            let id = completion.wr_id();
            let slot = if likely.id.get() == id { Some(likely) } else { self.of_id(id) };
            // Most of what somebody waits for here has no handle, and completes in order.
            let unheld = |slot: &&Slot| slot.state.get() == State::IN_FLIGHT.abandoned();
            match slot.filter(unheld) {
                Some(slot) if completion.result().is_ok() => {
                    slot.free();
                    // SAFETY: SAFETY.md F23: of this core's table.
                    likely = unsafe { slot.next.get().slot() };
                }
                _ => {
                    others += 1;
                    strays += usize::from(!self.deliver(&room.get()));
                }
            }
        }
        self.over.set(self.over.get() + (polled - others) as u64);
        Ok(polled - strays)
    }

    /// After a failed poll nothing will be known of any request.
    #[cold]
    pub(crate) fn poll_failed(&self, error: rdma_qp::PollError) -> TransportError {
        self.lanes.iter().for_each(|lane| lane.close(CloseReason::Poll));
        error.into()
    }

    /// Brings a completion to its slot. Whether it has one.
    #[inline(never)]
    pub(crate) fn deliver(&self, room: &PollSlot) -> bool {
        let completion = room.last();
        let slot = self.in_flight(completion.wr_id());
        match slot {
            Some(slot) => self.complete(slot, room),
            None => self.strays.set(self.strays.get() + 1),
        }
        slot.is_some()
    }

    /// The slot of a request that is with the device.
    #[inline]
    pub(crate) fn in_flight(&self, id: u64) -> Option<&Slot> {
        self.of_id(id).filter(|slot| slot.state.get().is_in_flight())
    }

    /// The slot that this is the id of.
    #[inline]
    pub(crate) fn of_id(&self, id: u64) -> Option<&Slot> {
        self.table.get(index(id)).filter(|slot| slot.id.get() == id)
    }

    #[inline]
    fn complete(&self, slot: &Slot, room: &PollSlot) {
        let (state, success) = (slot.state.get(), room.last().result().is_ok());
        if success && state == State::IN_FLIGHT {
            slot.completion.set(*room);
            slot.state.set(State::DONE);
        } else {
            self.complete_slowly(slot, state, room);
        }
    }

    #[cold]
    fn complete_slowly(&self, slot: &Slot, state: State, room: &PollSlot) {
        slot.completion.set(*room);
        slot.state.set(State::DONE);
        let result = room.last().result();
        if let (Err(error), Some(lane)) = (result, self.lanes.get(slot.lane as usize)) {
            lane.close(CloseReason::Work { operation: slot.operation.get(), error });
        }
        if state.is_linked() {
            self.complete_silent(slot.link.get());
        }
        if state.is_mark() {
            self.release(slot);
        } else if state.is_abandoned() && result.is_ok() {
            self.finish(slot);
        } else if state.is_abandoned() {
            slot.state.set(State::DONE.abandoned());
        }
    }

    /// Posts a request without memory to a queue pair in error, behind silent ones: it is flushed after them.
    pub(crate) fn post_mark(&self, lane: &Lane, qp: &QueuePair, slot: &Slot) {
        // SAFETY: SAFETY.md F22: nothing that `post` asks for is there: it has no elements, and is neither a bind
        // nor a datagram.
        if unsafe { qp.post(SendWorkRequest::new(&[]), slot.id.get()) }.is_ok() {
            self.posted(slot, Operation::Send);
            self.link(lane, slot, true);
            slot.state.set(slot.state.get().mark());
        }
    }

    /// Requests of one send queue are done in order: so the completion of a later one is that of the silent
    /// ones before it.
    fn complete_silent(&self, last: u64) {
        let mut id = last;
        while let Some(slot) = self.in_flight(id) {
            id = slot.link.get();
            let state = slot.state.replace(State::DONE.silent());
            if state.is_abandoned() {
                self.finish(slot);
            }
        }
    }

    /// Makes room for another request: its handle has told how this one ended.
    #[inline]
    pub(crate) fn release(&self, slot: &Slot) {
        slot.free();
        self.live.set(self.live.get() - 1);
    }

    /// Makes room for another request: this one succeeded, and nobody asks.
    #[inline]
    pub(crate) fn finish(&self, slot: &Slot) {
        slot.free();
        self.over.set(self.over.get() + 1);
    }
}

/// Runs what is seldom needed, out of line. What it needs is moved into it: if the way there gave away its
/// address, it would have to be in memory on the usual way too.
#[cold]
#[inline(never)]
pub(crate) fn seldom<R>(run: impl FnOnce() -> R) -> R {
    run()
}

/// Why a lane takes no requests.
#[cold]
pub(crate) fn closed(lane: &Lane) -> TransportError {
    lane.closed.get().map_or(TransportError::WouldBlock, TransportError::Closed)
}
