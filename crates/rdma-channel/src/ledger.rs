//! The ledger: records which requests the device holds, how completed requests ended, and which results the handles
//! have reported.
//!
//! A channel has one ledger. Channels that share a completion queue share a ledger. The ledger has a
//! [slot](queues::RequestSlot) for each request that their queues can hold. The completion queue has room for one
//! completion per slot, so it cannot overflow. A slot becomes occupied when its request is posted. It becomes free when
//! the request has completed *and* its handle was dropped or has reported the result.
//!
//! # States of a slot
//! The table shows the effect of each event in each [state](state::SlotState). `docs/how-a-channel-works.md` explains
//! the states.
//!
//! | | posted | completed | handle polled | handle dropped | scope begins | scope ends |
//! |---|---|---|---|---|---|---|
//! | free | in flight | – | – | – | – | – |
//! | in flight | – | done | – | in flight, dropped | in flight, forgotten | waited for; flushed; destroyed |
//! | in flight, dropped or forgotten | – | free; if it failed, done | – | – | forgotten | as above |
//! | done | – | – | reported | free; if it failed, done, dropped | free; if it failed, done, forgotten | free |
//! | done, dropped or forgotten | – | – | – | – | forgotten | free |
//! | reported | – | – | reported | free | – | free |
//!
//! [Removing](Ledger::remove) a peer frees all of its slots, whatever state they are in.
//!
//! An unsignaled request completes together with the next signaled request of its send queue. It creates a completion
//! only if it fails.
//!
//! # Invariants
//! In debug builds, [`check`](Ledger::check) recounts these after each operation:
//! - `unreleased - unclaimed` slots are occupied (in flight, done, reported);
//! - `unclaimed` requests of the current scope have succeeded, and their handles were dropped;
//! - on an open connection, `unsignaled` requests are in flight and linked, from the last one backwards;
//! - only occupied slots are dropped or forgotten; the WR ID of each slot contains the index of that slot;
//! - the slots of each queue form a single ring;
//! - the cursors of a closed connection are at the dead slot.

use std::cell::{Cell, RefCell};
use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_connect::{
    CloseReason, ConnectionCounters, FailedWork, Operation, PeerAddress, TransportError, WorkId,
};
use rdma_mem::ProtectionDomain;
use rdma_qp::{CompletionQueue, PollSlot, QueuePair, WorkError, WorkErrorClass, WorkErrorCode};

use self::queues::{Connection, Queue, Queues, RequestSlot};
use self::state::SlotState;
use self::watch::Watch;
use crate::deadline::Deadline;
use crate::limits::Limits;

#[cfg(debug_assertions)]
mod check;
mod completion;
mod copies;
mod counts;
pub(crate) mod end;
mod events;
mod inline;
mod members;
mod pause;
pub(crate) mod post;
pub(crate) mod queues;
mod state;
pub(crate) mod ticket;
pub(crate) mod watch;
pub(crate) mod words;

/// The requests of channels that share a completion queue.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Dropped first, so that the queue pairs are destroyed before the completion queue.
    pub(crate) queues: Queues,
    pub(crate) cq: CompletionQueue,
    /// The buffer for polls that can return completions of any request.
    polled: Box<[Cell<PollSlot>; MANY]>,
    /// The number of posted requests that no handle has released. It is 0 if a scope has nothing to end. It has 64 bits,
    /// so that it does not overflow within a scope.
    unreleased: Cell<u64>,
    counts: counts::Counts,
    /// The number of unreleased requests that succeeded, but whose handles were dropped without reporting the result.
    /// Their slots are free.
    unclaimed: Cell<u64>,
    /// The WR ID of a blocking call that had to wait for a free slot, and the time at which the call must end. Applies
    /// only to the request with that WR ID.
    call_ends: Cell<(u64, Option<Instant>)>,
    /// The reason for the last failed post, until it is read.
    refusal: post::LastPostFailure,
    /// The number of completions that matched no request in flight.
    pub(crate) unmatched: Cell<u64>,
    /// The number of event requests since the last event was received. If this is 0, no event is pending, except
    /// perhaps a late one.
    events_requested: Cell<u64>,
    pub(crate) limits: Limits,
    /// The requests in flight whose waits have timed out: the WR ID of each, with its longest timeout.
    timed_out: RefCell<Vec<(u64, Duration)>>,
    emitted: events::Emitted,
    /// Whether the closure of the scope that is ending has failed.
    closure_failed: bool,
    /// Dropped after the queue pairs.
    words: words::Words,
    /// Dropped after the queue pairs, like `words`.
    copies: Option<copies::Copies>,
    pub(crate) pd: ProtectionDomain,
    /// Closed after the queue pairs, so that a peer that sees the end of the stream has received everything that was
    /// sent before.
    pub(crate) watch: Option<Box<Watch>>,
    /// The address of the peer, if the channel was made by address.
    pub(crate) peer_addr: Option<SocketAddr>,
    #[cfg(debug_assertions)]
    checks: Cell<u32>,
}

/// The time that a post waits for a free slot in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotWait {
    /// The post does not wait.
    Now,
    /// The post waits for the time limit of its kind of operation.
    Usual,
    /// The post waits like `Usual`, but is part of a call: the time limit of the call starts with this wait.
    Call,
}

/// The shortest wait that counts. When a shorter one times out, the request is not recorded in `timed_out`.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// Completions polled per call.
const MANY: usize = 16;

impl Ledger {
    /// Creates the ledger for queue pairs of `pd` whose queues have the sizes in `asked`. All requests complete in
    /// `cq`, which has room for one completion per request, including the requests of places without a queue pair. The
    /// builder has checked that there are at most [`MOST_REQUESTS`](queues::MOST_REQUESTS) requests.
    pub(crate) fn new(
        cq: CompletionQueue,
        qps: Vec<Option<QueuePair>>,
        asked: queues::Asked,
        limits: Limits,
        pd: ProtectionDomain,
    ) -> Self {
        Self {
            queues: Queues::new(qps, asked),
            cq,
            polled: Box::default(),
            unreleased: Cell::new(0),
            counts: counts::Counts::default(),
            unclaimed: Cell::new(0),
            call_ends: Cell::new((0, None)),
            refusal: post::LastPostFailure::default(),
            unmatched: Cell::new(0),
            events_requested: Cell::new(0),
            limits,
            timed_out: RefCell::default(),
            emitted: events::Emitted::default(),
            closure_failed: false,
            words: words::Words::default(),
            copies: None,
            pd,
            watch: None,
            peer_addr: None,
            #[cfg(debug_assertions)]
            checks: Cell::new(0),
        }
    }

    /// Returns the only connection of a channel.
    #[inline(always)]
    pub(crate) const fn only(&self) -> &Connection {
        self.queues.only()
    }

    /// Returns the connection to this peer.
    #[inline(always)]
    pub(crate) fn connection(&self, peer: usize) -> Result<&Connection, TransportError> {
        match self.queues.get(peer) {
            Some(connection) => Ok(connection),
            // The error is not created eagerly with `ok_or`, because an unused error would have to be dropped.
            None => Err(TransportError::NoSuchPeer { peer, count: self.queues.len() }),
        }
    }

    /// Returns the queue pair of this peer, unless it was destroyed.
    pub(crate) fn qp(&self, peer: usize) -> Result<&QueuePair, TransportError> {
        let connection = self.connection(peer)?;
        connection.qp().ok_or_else(|| closed(connection))
    }

    /// Records a request that the device has accepted, with its initial state.
    #[inline(always)]
    fn posted(&self, slot: &RequestSlot, operation: Operation, state: SlotState) {
        self.unreleased.set(self.unreleased.get() + 1);
        slot.begin(operation, state);
    }

    /// Records a request whose post failed although the device may have accepted it. Its slot stays in flight, as if
    /// the post had succeeded.
    #[cold]
    pub(crate) fn maybe_posted(
        &self,
        connection: &Connection,
        slot: &RequestSlot,
        operation: Operation,
        signaled: bool,
    ) {
        let state = connection.link(slot, operation, signaled);
        self.posted(slot, operation, state.forgotten());
        self.checked();
    }

    /// Returns the queue pair and the slot for the next request of a queue whose next slot is not free. `wait`
    /// determines how long to wait for a slot.
    pub(crate) fn wait_for_slot<'l>(
        &'l self,
        connection: &'l Connection,
        queue: &'l Queue,
        operation: Operation,
        wait: SlotWait,
    ) -> Result<(&'l RequestSlot, &'l QueuePair), TransportError> {
        let timeout = match wait {
            SlotWait::Now => None,
            SlotWait::Usual | SlotWait::Call => Some(self.limits.of(operation)),
        };
        let mut deadline = timeout.and_then(Deadline::for_room);
        let taken = self.take_slot(connection, queue, operation, deadline.as_mut());
        if let (SlotWait::Call, Some(deadline)) = (wait, deadline) {
            match &taken {
                Ok((slot, _)) => self.call_ends.set((slot.id(), deadline.end())),
                Err(TransportError::Timeout { .. }) => {
                    connection.close(CloseReason::Timeout { operation });
                }
                Err(_) => {}
            }
        }
        taken
    }

    /// Clears `call_ends` after a failed post. The next request in the same slot gets the same WR ID, but it does not
    /// belong to the call that waited.
    pub(crate) fn forget_call(&self) {
        self.call_ends.set((0, None));
    }

    /// Returns a free slot of a queue, and the queue pair. Waits for the slot until the deadline, or not at all if
    /// there is no deadline.
    pub(crate) fn take_slot<'l>(
        &'l self,
        connection: &'l Connection,
        queue: &'l Queue,
        operation: Operation,
        mut deadline: Option<&mut Deadline>,
    ) -> Result<(&'l RequestSlot, &'l QueuePair), TransportError> {
        let mut has_waited = false;
        loop {
            let (None, Some(qp)) = (connection.closed(), connection.qp()) else {
                return Err(closed(connection));
            };
            let slots = self.queues.slots_of(queue);
            let free = || slots.iter().find(|slot| slot.is_free());
            if let Some(slot) = queue.next_free().or_else(free) {
                return Ok((slot, qp));
            }
            // Only a signaled request in flight can free a slot here. The slot of a completed request is freed by its
            // handle, and the slot of an unsignaled request by a later request.
            let helps = |state: SlotState| state.is_in_flight() && !state.is_unsignaled();
            let helps = slots.iter().any(|slot| helps(slot.state()));
            if !self.take_completions()? {
                let deadline = deadline.as_mut().filter(|_| helps);
                let Some(deadline) = deadline else { return Err(TransportError::WouldBlock) };
                if !mem::replace(&mut has_waited, true) {
                    self.counts.note_slot_wait();
                }
                if self.pause(deadline, operation)? {
                    if let Some(slot) = slots.iter().find(|slot| slot.state().is_in_flight()) {
                        self.note_timed_out(slot, deadline.limit());
                    }
                    let timeout = deadline.limit();
                    return Err(TransportError::Timeout {
                        operation,
                        timeout,
                        peer: connection.peer,
                    });
                }
            }
        }
    }

    /// Reserves a slot for each request of a batch. The caller records each posted request with
    /// [`posted`](Self::posted), and frees the other slots with [`unreserve`](Self::unreserve).
    #[cold]
    pub(crate) fn reserve<'l>(
        &'l self,
        connection: &'l Connection,
        queue: &'l Queue,
        operations: impl Iterator<Item = Operation>,
        slots: &mut [&'l RequestSlot],
        mut deadline: Option<&mut Deadline>,
    ) -> Result<(), TransportError> {
        if slots.len() > queue.capacity() as usize && connection.closed().is_none() {
            let (requests, capacity) = (slots.len(), queue.capacity());
            return Err(TransportError::BatchTooLarge { requests, capacity });
        }
        for (place, operation) in operations.enumerate() {
            match self.take_slot(connection, queue, operation, deadline.as_deref_mut()) {
                Ok((slot, _)) => {
                    slot.set(SlotState::RESERVED);
                    queue.advance(slot);
                    slots[place] = slot;
                }
                Err(error) => {
                    Self::unreserve(&slots[..place]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Frees the slots of requests that were not posted. These slots are reserved or already free.
    pub(crate) fn unreserve(slots: &[&RequestSlot]) {
        slots.iter().for_each(|slot| slot.set(SlotState::FREE));
    }

    /// Returns the dead slot, as the initial value of a slot reference.
    #[inline(always)]
    pub(crate) fn dead_slot(&self) -> &RequestSlot {
        self.queues.dead()
    }

    /// Returns the slot of this WR ID, if its request is in flight.
    #[inline]
    pub(crate) fn in_flight(&self, id: u64) -> Option<&RequestSlot> {
        Some(self.queues.by_id(id)).filter(|slot| slot.state().is_in_flight())
    }

    /// Records that a wait for the request in a slot has timed out. `limit` is the timeout.
    #[cold]
    pub(crate) fn note_timed_out(&self, slot: &RequestSlot, limit: Duration) {
        if limit < SHORTEST_WAIT {
            return;
        }
        let mut all = self.timed_out.borrow_mut();
        all.retain(|&(id, _)| self.in_flight(id).is_some());
        match all.iter_mut().find(|(id, _)| *id == slot.id()) {
            Some((_, longest)) => *longest = limit.max(*longest),
            None => all.push((slot.id(), limit)),
        }
    }

    /// Returns the peer of the request in a slot.
    pub(crate) fn peer_of(&self, slot: &RequestSlot) -> Option<PeerAddress> {
        self.queues.get(slot.connection as usize)?.peer
    }

    /// Returns the error for the failed request in a slot.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(&self, slot: &RequestSlot, error: WorkError) -> TransportError {
        let (operation, peer) = (slot.operation.get(), self.peer_of(slot));
        let connection = self.queues.get(slot.connection as usize);
        if let Some(reason) = connection.and_then(Connection::closed)
            && reason.is_of_peer()
            && error.code() == WorkErrorCode::RetryExceededError
        {
            return TransportError::PeerGone { operation, reason, peer };
        }
        // Unless the request was flushed, its own completion already contains the cause.
        let connection = connection.filter(|_| error.class() == WorkErrorClass::Flushed);
        let event = connection.and_then(Connection::query_cause);
        TransportError::WorkError(FailedWork::new(operation, peer, error, event))
    }

    /// If connections were closed by a flushed request, queries the device for the cause.
    #[cold]
    pub(crate) fn query_causes(&self) {
        for connection in self.queues.iter().filter(|one| one.closed().is_some_and(is_flush)) {
            connection.query_cause();
        }
    }

    /// Returns true if there are requests that no handle has released.
    pub(crate) fn has_unreleased(&self) -> bool {
        self.unreleased.get() != 0
    }

    /// Returns the counters of all connections together.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        let is_outstanding = |slot: &&RequestSlot| {
            let (state, connection) = (slot.state(), self.queues.get(slot.connection as usize));
            let has_qp = connection.is_some_and(|connection| connection.qp().is_some());
            state.is_in_flight() && !state.is_marker() && has_qp
        };
        // Posts are counted here, so that a post itself needs no additional instruction.
        let uses = |slot: &RequestSlot| {
            (slot.id() >> WorkId::INDEX_BITS) + u64::from(slot.state().is_occupied())
        };
        let uses = self.queues.slots().iter().map(uses).sum();
        let outstanding = self.queues.slots().iter().filter(is_outstanding).count();
        self.counts.snapshot(uses, outstanding as u64)
    }

    /// Frees the slot after its handle has reported the result.
    #[inline(always)]
    pub(crate) fn release(&self, slot: &RequestSlot) {
        slot.free();
        self.unreleased.set(self.unreleased.get() - 1);
        self.checked();
    }

    /// Frees the slot of a request that succeeded and has no handle. If the handle was dropped in the current scope,
    /// counts the request in `unasked`.
    fn finish(&self, slot: &RequestSlot) {
        if slot.state().is_dropped() {
            slot.free();
            self.unclaimed.set(self.unclaimed.get() + 1);
        } else {
            self.release(slot);
        }
    }

    /// Checks that this process created the ledger, because a forked child receives no completions. In a forked child,
    /// also closes all connections.
    #[cold]
    pub(crate) fn check_process(&self) -> Result<(), TransportError> {
        self.pd.check_process().map_err(|_| {
            self.queues.iter().for_each(|connection| connection.close(CloseReason::Forked));
            let peer = self.only().peer.filter(|_| self.queues.len() == 1);
            TransportError::Closed { reason: CloseReason::Forked, peer, event: None }
        })
    }

    /// Checks the invariants in debug builds.
    #[inline(always)]
    pub(crate) fn checked(&self) {
        #[cfg(debug_assertions)]
        self.check_now_and_then();
    }
}

/// Runs a rarely used path in a function that is not inlined. The closure owns the values that it needs. If it borrowed
/// them instead, they would have to be in memory even on the usual path.
#[cold]
#[inline(never)]
pub(crate) fn run_cold<R>(run: impl FnOnce() -> R) -> R {
    run()
}

/// Returns the error for a request on a closed connection.
#[cold]
pub(crate) fn closed(connection: &Connection) -> TransportError {
    let Some(reason) = connection.closed() else { return TransportError::WouldBlock };
    if is_flush(reason) {
        connection.query_cause();
    }
    closed_by(connection, reason)
}

/// Returns the error for a request on a connection that was closed for this reason.
#[cold]
pub(crate) fn closed_by(connection: &Connection, reason: CloseReason) -> TransportError {
    TransportError::Closed { reason, peer: connection.peer, event: connection.cause() }
}

/// Returns true if a flushed request closed the connection. The device may then know the cause.
fn is_flush(reason: CloseReason) -> bool {
    matches!(reason, CloseReason::Work { error, .. } if error.class() == WorkErrorClass::Flushed)
}
