//! Queue pairs that share a completion queue, and the table of their requests.
#![allow(unsafe_code)]

use std::cell::Cell;

use rdma_mem::ProtectionDomain;
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, PollSlot, PostError, QueuePair, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WorkCompletion, WorkRequest, WorkResult, WorkSuccess,
    WriteWorkRequest,
};

use crate::lane::{Lane, Ring};
use crate::limits::Limits;
use crate::patience::Patience;
use crate::slot::{Slot, State, index};
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
    pub(crate) lanes: Box<[Lane]>,
    /// The first is dead, then come those of each lane: its send queue, its receive queue.
    pub(crate) table: Box<[Slot]>,
    pub(crate) cq: CompletionQueue,
    /// For one completion at a time.
    pub(crate) room: Cell<PollSlot>,
    /// How many slots are not free, and those handles: 0 if a scope has nothing to end. Of 64 bits, so that no
    /// scope lasts until it is 0 again.
    pub(crate) live: Cell<usize>,
    /// How many handles were dropped that had not told.
    pub(crate) unasked: Cell<usize>,
    /// The id of a request that was refused, and may be with the device all the same; else 0.
    pub(crate) doubtful: Cell<u64>,
    /// How many completions were of no request of the table.
    pub(crate) strays: Cell<u64>,
    pub(crate) limits: Limits,
    pub(crate) pd: ProtectionDomain,
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
    /// to receive, and which all complete in `cq`, which holds one completion of each of these.
    pub(crate) fn new(
        cq: CompletionQueue,
        qps: Vec<QueuePair>,
        (max_send_wr, max_recv_wr): (u32, u32),
        limits: Limits,
        pd: ProtectionDomain,
    ) -> Self {
        let (mut table, mut lanes) = (vec![Slot::dead()], Vec::with_capacity(qps.len()));
        let mut first = 1;
        for (lane, qp) in (0..).zip(qps) {
            let mut ring = |count: u32| {
                let ring = Ring::new(first, count);
                table.extend((0..count).map(|place| {
                    let next = first + if place + 1 < count { place + 1 } else { 0 };
                    Slot::new(first + place, lane, qp.qpn(), next)
                }));
                first += count;
                ring
            };
            let (send, receive) = (ring(max_send_wr), ring(max_recv_wr));
            lanes.push(Lane::new(qp, send, receive));
        }
        Self {
            lanes: lanes.into(),
            table: table.into(),
            cq,
            room: Cell::default(),
            live: Cell::new(0),
            unasked: Cell::new(0),
            doubtful: Cell::new(0),
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
        lane.qp.as_ref().ok_or_else(|| closed(lane))
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
        wait: bool,
    ) -> Result<Ticket<'c>, TransportError> {
        let (slot, qp) = self.take(lane, &lane.send, operation, wait)?;
        let signaled = request.is_signaled() || lane.has_to_signal();
        let request = if signaled { request.made_signaled() } else { request };
        // SAFETY: SAFETY.md F21: this function's contract.
        match unsafe { qp.post(request, slot.id.get()) } {
            Ok(()) => {
                self.posted(slot, operation);
                if !signaled || lane.silent.get() != 0 {
                    self.link(lane, slot, signaled);
                }
                Ok(Ticket::new(self, slot))
            }
            Err(error) => {
                let refused = move || self.refused(lane, slot, operation, Some(signaled), error);
                Err(seldom(refused))
            }
        }
    }

    /// As [`post`](Self::post), to that peer.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn post_to<R: SendRequest>(
        &self,
        peer: usize,
        operation: Operation,
        request: R,
        wait: bool,
    ) -> Result<Ticket<'_>, TransportError> {
        let lane = self.lane(peer)?;
        // SAFETY: SAFETY.md F21: the same contract.
        unsafe { self.post(lane, operation, request, wait) }
    }

    /// As [`post_receive`](Self::post_receive), from that peer.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn post_receive_from(
        &self,
        peer: usize,
        request: ReceiveWorkRequest<'_, '_>,
        wait: bool,
    ) -> Result<Ticket<'_>, TransportError> {
        let lane = self.lane(peer)?;
        // SAFETY: SAFETY.md F21: the same contract.
        unsafe { self.post_receive(lane, request, wait) }
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
        wait: bool,
    ) -> Result<Ticket<'c>, TransportError> {
        let (slot, qp) = self.take(lane, &lane.receive, Operation::Receive, wait)?;
        // SAFETY: SAFETY.md F21: this function's contract.
        match unsafe { qp.post(request, slot.id.get()) } {
            Ok(()) => {
                self.posted(slot, Operation::Receive);
                Ok(Ticket::new(self, slot))
            }
            Err(error) => {
                let refused = move || self.refused(lane, slot, Operation::Receive, None, error);
                Err(seldom(refused))
            }
        }
    }

    /// The slot for the next request of a queue, and the queue pair. With `wait`, as long as operations of this kind may
    /// take, but for ever.
    #[inline(always)]
    pub(crate) fn take<'c>(
        &'c self,
        lane: &'c Lane,
        ring: &Ring,
        operation: Operation,
        wait: bool,
    ) -> Result<(&'c Slot, &'c QueuePair), TransportError> {
        let slot = match self.table.get(ring.cursor.get() as usize) {
            Some(slot) if slot.state.get() == State::FREE => {
                ring.cursor.set(slot.next);
                slot
            }
            _ => self.make_room(lane, ring, operation, wait)?,
        };
        match &lane.qp {
            Some(qp) => Ok((slot, qp)),
            None => Err(closed(lane)),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_room(
        &self,
        lane: &Lane,
        ring: &Ring,
        operation: Operation,
        wait: bool,
    ) -> Result<&Slot, TransportError> {
        let timeout = self.limits.of(operation);
        let wait = wait && timeout != crate::patience::FOR_EVER;
        let mut patience = Patience::new(timeout);
        loop {
            if lane.closed.get().is_some() {
                return Err(closed(lane));
            }
            let slots = self.table.get(ring.slots()).unwrap_or_default();
            if let Some(slot) = slots.iter().find(|slot| slot.state.get() == State::FREE) {
                ring.cursor.set(slot.next);
                return Ok(slot);
            }
            // Those that are done wait for their handles, and silent ones for a later one: nothing that
            // happens here helps them.
            let helps = |state: State| state.is_in_flight() && !state.is_silent();
            let helps = slots.iter().any(|slot| helps(slot.state.get()));
            if self.progress()? == 0 {
                if !wait || !helps {
                    return Err(TransportError::WouldBlock);
                }
                if patience.is_over() {
                    return Err(TransportError::Timeout { operation, timeout });
                }
            }
        }
    }

    /// Notes a request that is with the device.
    #[inline(always)]
    pub(crate) fn posted(&self, slot: &Slot, operation: Operation) {
        slot.operation.set(operation);
        slot.state.set(State::IN_FLIGHT);
        self.live.set(self.live.get() + 1);
    }

    /// Notes a request that is silent, or signaled and behind silent ones, of which its completion tells.
    #[cold]
    #[inline(never)]
    pub(crate) fn link(&self, lane: &Lane, slot: &Slot, signaled: bool) {
        slot.link.set(lane.silent.get());
        if signaled {
            slot.state.set(State::IN_FLIGHT.linked());
            lane.silent.set(0);
            lane.run.set(0);
        } else {
            slot.state.set(State::IN_FLIGHT.silent());
            lane.silent.set(slot.id.get());
            lane.run.set(lane.run.get() + 1);
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
        if error.posted() > 0 {
            // Perhaps it is with the device: so its slot waits as if it were.
            self.posted(slot, operation);
            if let Some(signaled) = signaled {
                self.link(lane, slot, signaled);
            }
            slot.state.set(slot.state.get().abandoned());
            self.doubtful.set(slot.id.get());
        }
        error.into()
    }

    /// Takes completions, as many as there are. How many were of requests under way: others, from a device
    /// that makes them up, keep nobody waiting.
    pub(crate) fn progress(&self) -> Result<usize, TransportError> {
        let mut slots = [PollSlot::default(); MANY];
        let completions = self.cq.poll(&mut slots).map_err(|error| self.poll_failed(error))?;
        Ok(completions.filter(|completion| self.deliver(completion)).count())
    }

    /// After a failed poll nothing will be known of any request.
    #[cold]
    pub(crate) fn poll_failed(&self, error: rdma_qp::PollError) -> TransportError {
        self.lanes.iter().for_each(|lane| lane.close(CloseReason::Poll));
        error.into()
    }

    /// Brings a completion to its slot. Whether it has one.
    #[inline]
    pub(crate) fn deliver(&self, completion: &WorkCompletion) -> bool {
        match self.in_flight(completion.wr_id()) {
            Some(slot) if completion.is_of(slot.qpn) => {
                self.complete(slot, completion.result());
                true
            }
            _ => {
                self.strays.set(self.strays.get() + 1);
                false
            }
        }
    }

    /// The slot of a request that is with the device.
    #[inline]
    pub(crate) fn in_flight(&self, id: u64) -> Option<&Slot> {
        let slot = self.table.get(index(id))?;
        (slot.id.get() == id && slot.state.get().is_in_flight()).then_some(slot)
    }

    #[inline]
    fn complete(&self, slot: &Slot, result: WorkResult) {
        let state = slot.state.replace(State::DONE);
        slot.result.set(Some(result));
        if state != State::IN_FLIGHT || result.is_err() {
            self.complete_slowly(slot, state, result);
        }
    }

    #[cold]
    fn complete_slowly(&self, slot: &Slot, state: State, result: WorkResult) {
        if let (Err(error), Some(lane)) = (result, self.lanes.get(slot.lane as usize)) {
            lane.close(CloseReason::Work { operation: slot.operation.get(), error });
        }
        if state.is_linked() {
            self.complete_silent(slot.link.get());
        }
        if state.is_mark() || state.is_abandoned() && result.is_ok() {
            self.release(slot);
        } else if state.is_abandoned() {
            slot.state.set(State::DONE.abandoned());
        }
    }

    /// Posts a request without memory to a queue pair in error, behind silent ones: it is flushed after them.
    pub(crate) fn post_mark(&self, lane: &Lane, qp: &QueuePair, slot: &Slot) {
        // SAFETY: SAFETY.md F21: no memory.
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
            let state = slot.state.replace(State::DONE);
            slot.result.set(Some(Ok(WorkSuccess::of_send(slot.operation.get().opcode()))));
            if state.is_abandoned() {
                self.release(slot);
            }
        }
    }

    /// Makes room for another request.
    #[inline]
    pub(crate) fn release(&self, slot: &Slot) {
        slot.free();
        self.live.set(self.live.get() - 1);
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
