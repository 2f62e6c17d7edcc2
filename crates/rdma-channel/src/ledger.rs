//! The ledger: which requests the device has, how those ended that it has done, and whose handles have said so.
//!
//! A channel, or channels that share a completion queue, have one ledger. It has a [slot](queues::RequestSlot) for each request
//! that their queues hold, and the completion queue holds one completion of each: so nothing can overflow. A request is
//! in its slot from its post until it is over *and* its handle is gone or has reported how it ended.
//!
//! # States of a slot
//! By [state](state::SlotState), what each event does (`docs/how-a-channel-works.md` explains them):
//!
//! | | posted | completed | handle asked | handle dropped | scope begins | scope ends |
//! |---|---|---|---|---|---|---|
//! | free | in flight | – | – | – | – | – |
//! | in flight | – | done | – | in flight, dropped | in flight, forgotten | waited for; flushed; destroyed |
//! | in flight, dropped or forgotten | – | free; if it failed, done | – | – | forgotten | as above |
//! | done | – | – | reported | free; if it failed, done, dropped | free; if it failed, done, forgotten | free |
//! | done, dropped or forgotten | – | – | – | – | forgotten | free |
//! | reported | – | – | reported | free | – | free |
//!
//! Whatever is in the slots of a peer, they are free when it was [removed](Ledger::remove).
//!
//! An unsignaled request is done with the next signaled request of its send queue, and has no completion of its own
//! unless it fails.
//!
//! # What always holds
//! [`check`](Ledger::check) counts it again in debug builds, after each operation:
//! - `unreleased - unasked` slots are occupied (in flight, done, reported);
//! - `unasked` requests of the scope that runs were dropped by their handles and have succeeded;
//! - of an open connection: `unsignaled` requests are in flight and linked, from the last of them backwards;
//! - no slot is dropped or forgotten that is not occupied; each has the WR ID of its place;
//! - the slots of a queue are one ring;
//! - the cursors of a closed connection are at the dead slot.

use std::cell::{Cell, RefCell};
use std::mem;
use std::time::{Duration, Instant};

use rdma_connect::{
    CloseReason, ConnectionCounters, FailedWork, Operation, PeerAddress, TransportError,
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
mod inline;
mod members;
mod news;
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
    /// Dropped, and their queue pairs destroyed, before the completion queue.
    pub(crate) queues: Queues,
    pub(crate) cq: CompletionQueue,
    /// For completions that can be of any request.
    polled: Box<[Cell<PollSlot>; MANY]>,
    counts: counts::Counts,
    /// The number of unreleased requests that have succeeded after their handles were gone: their slots are free.
    unasked: Cell<u64>,
    /// The WR ID of a request whose blocking call had to wait for a free slot, and the end of that call. If another request is
    /// asked for, nobody had to wait.
    call_ends: Cell<(u64, Option<Instant>)>,
    /// Why the last request was not posted that was not, until somebody has asked.
    refusal: post::LastPostFailure,
    /// How many completions were of no request in flight.
    pub(crate) unmatched: Cell<u64>,
    /// How often an event was asked for since one was taken. If it is 0, there is none but perhaps a late one.
    events_asked: Cell<u64>,
    pub(crate) limits: Limits,
    /// The requests in flight that were waited for in vain, by WR ID, and how long at most.
    given_up: RefCell<Vec<(u64, Duration)>>,
    told: news::Told,
    /// The closure of the scope that ends has failed.
    closure_failed: bool,
    /// Dropped behind the queue pairs.
    words: words::Words,
    /// As the words.
    copies: Option<copies::Copies>,
    pub(crate) pd: ProtectionDomain,
    /// Closed behind the queue pairs: who sees its end has what was sent before.
    pub(crate) watch: Option<Box<Watch>>,
    #[cfg(debug_assertions)]
    checks: Cell<u32>,
}

/// How long a post waits for a free slot in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotWait {
    /// Not at all.
    Now,
    /// As long as operations of its kind may take.
    Usual,
    /// The same, as part of a call, whose time begins with the wait.
    Call,
}

/// Who waits for less than that has a look, and gives nothing up.
const LOOK: Duration = Duration::from_millis(10);

/// How many completions are taken at a time.
const MANY: usize = 16;

impl Ledger {
    /// A ledger for queue pairs of that domain whose queues were asked for so many requests, and which all complete in
    /// `cq`, which holds one completion of each, also for the places without a queue pair. The builder has seen to it that these are no more than
    /// [`MOST_REQUESTS`](queues::MOST_REQUESTS).
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
            counts: counts::Counts::default(),
            unasked: Cell::new(0),
            call_ends: Cell::new((0, None)),
            refusal: post::LastPostFailure::default(),
            unmatched: Cell::new(0),
            events_asked: Cell::new(0),
            limits,
            given_up: RefCell::default(),
            told: news::Told::default(),
            closure_failed: false,
            words: words::Words::default(),
            copies: None,
            pd,
            watch: None,
            #[cfg(debug_assertions)]
            checks: Cell::new(0),
        }
    }

    /// The connection of a channel, which has one.
    #[inline(always)]
    pub(crate) const fn only(&self) -> &Connection {
        self.queues.only()
    }

    /// The connection to that peer.
    #[inline(always)]
    pub(crate) fn connection(&self, peer: usize) -> Result<&Connection, TransportError> {
        match self.queues.get(peer) {
            Some(connection) => Ok(connection),
            // Not made beforehand: an error that is not needed would be dropped.
            None => Err(TransportError::NoSuchPeer { peer, count: self.queues.len() }),
        }
    }

    /// The queue pair to that peer, if it is not destroyed.
    pub(crate) fn qp(&self, peer: usize) -> Result<&QueuePair, TransportError> {
        let connection = self.connection(peer)?;
        connection.qp().ok_or_else(|| closed(connection))
    }

    /// Notes a request that is with the device, and the state that it begins in.
    #[inline(always)]
    fn posted(&self, slot: &RequestSlot, operation: Operation, state: SlotState) {
        self.counts.post(1);
        slot.begin(operation, state);
    }

    /// Notes a request whose post failed, and which may be with the device all the same: its slot waits as if it were.
    #[cold]
    pub(crate) fn perhaps_posted(
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

    /// The slot for the next request of a queue that has none at hand, and the queue pair. Waits for it as long as `wait`
    /// says.
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

    /// The WR ID of the next request in its slot is the same as that of one that was refused, whose call is over.
    pub(crate) fn forget_call(&self) {
        self.call_ends.set((0, None));
    }

    /// A free slot of a queue, and the queue pair. Waits for it until the deadline, or not at all.
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
            // Those that are done wait for their handles, and unsignaled ones for a later one: nothing that
            // happens here helps them.
            let helps = |state: SlotState| state.is_in_flight() && !state.is_unsignaled();
            let helps = slots.iter().any(|slot| helps(slot.state()));
            if self.take_completions()? == 0 {
                let deadline = deadline.as_mut().filter(|_| helps);
                let Some(deadline) = deadline else { return Err(TransportError::WouldBlock) };
                if !mem::replace(&mut has_waited, true) {
                    self.counts.note_slot_wait();
                }
                if self.pause(deadline, operation)? {
                    if let Some(slot) = slots.iter().find(|slot| slot.state().is_in_flight()) {
                        self.note_given_up(slot, deadline.limit());
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

    /// Reserves a slot for each request of a batch: what is posted next is [`posted`](Self::posted), and the others are
    /// [given back](Self::unreserve).
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

    /// Gives back slots that were reserved, or are free, of requests that were not posted.
    pub(crate) fn unreserve(slots: &[&RequestSlot]) {
        slots.iter().for_each(|slot| slot.set(SlotState::FREE));
    }

    /// The dead slot, for a place that has none yet.
    #[inline(always)]
    pub(crate) fn no_slot(&self) -> &RequestSlot {
        self.queues.dead()
    }

    /// The slot of a request that is with the device.
    #[inline]
    pub(crate) fn in_flight(&self, id: u64) -> Option<&RequestSlot> {
        self.queues.by_id(id).filter(|slot| slot.state().is_in_flight())
    }

    /// A wait for the request in a slot ran out after so long.
    #[cold]
    pub(crate) fn note_given_up(&self, slot: &RequestSlot, limit: Duration) {
        if limit < LOOK {
            return;
        }
        let mut all = self.given_up.borrow_mut();
        all.retain(|&(id, _)| self.in_flight(id).is_some());
        match all.iter_mut().find(|(id, _)| *id == slot.id()) {
            Some((_, longest)) => *longest = limit.max(*longest),
            None => all.push((slot.id(), limit)),
        }
    }

    /// Whom the request in a slot is with.
    pub(crate) fn peer_of(&self, slot: &RequestSlot) -> Option<PeerAddress> {
        self.queues.get(slot.connection as usize)?.peer
    }

    /// What is said of the request in a slot, which has failed.
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
        // Of a failure that is no flush, the completion has said why.
        let connection = connection.filter(|_| error.class() == WorkErrorClass::Flushed);
        let event = connection.and_then(Connection::ask_for_cause);
        TransportError::WorkError(FailedWork::new(operation, peer, error, event))
    }

    /// Asks the device of each connection that was closed by a flush why that was.
    #[cold]
    pub(crate) fn ask_for_causes(&self) {
        for connection in self.queues.iter().filter(|one| one.closed().is_some_and(is_flush)) {
            connection.ask_for_cause();
        }
    }

    /// Whether there is a request that no handle has released.
    pub(crate) fn has_unreleased(&self) -> bool {
        self.counts.unreleased() != 0
    }

    /// Returns the counters of all connections together.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        let is_outstanding = |slot: &&RequestSlot| {
            let (state, connection) = (slot.state(), self.queues.get(slot.connection as usize));
            let has_qp = connection.is_some_and(|connection| connection.qp().is_some());
            state.is_in_flight() && !state.is_marker() && has_qp
        };
        let slots = self.queues.slots().iter();
        self.counts.snapshot(slots.filter(is_outstanding).count() as u64)
    }

    /// Frees the slot: its handle has reported how this one ended.
    #[inline(always)]
    pub(crate) fn release(&self, slot: &RequestSlot) {
        slot.free();
        self.counts.release(1);
        self.checked();
    }

    /// Frees the slot: this one succeeded, and nobody asks. If its handle was dropped in the scope that
    /// runs, it is counted.
    fn finish(&self, slot: &RequestSlot) {
        if slot.state().is_dropped() {
            slot.free();
            self.unasked.set(self.unasked.get() + 1);
        } else {
            self.release(slot);
        }
    }

    /// That this is the process that has made it, and not a fork, which no completion reaches.
    #[cold]
    pub(crate) fn check_process(&self) -> Result<(), TransportError> {
        self.cq.context().check_process().map_err(|_| {
            self.queues.iter().for_each(|connection| connection.close(CloseReason::Forked));
            let peer = self.only().peer.filter(|_| self.queues.len() == 1);
            TransportError::Closed { reason: CloseReason::Forked, peer, event: None }
        })
    }

    /// Counts again, in debug builds.
    #[inline(always)]
    pub(crate) fn checked(&self) {
        #[cfg(debug_assertions)]
        self.check_now_and_then();
    }
}

/// Runs what is seldom needed, out of line. What it needs is moved into it: if the way there gave away its
/// address, it would have to be in memory on the usual way too.
#[cold]
#[inline(never)]
pub(crate) fn seldom<R>(run: impl FnOnce() -> R) -> R {
    run()
}

/// Why a connection takes no requests.
#[cold]
pub(crate) fn closed(connection: &Connection) -> TransportError {
    let Some(reason) = connection.closed() else { return TransportError::WouldBlock };
    if is_flush(reason) {
        connection.ask_for_cause();
    }
    closed_by(connection, reason)
}

/// What is said of requests of a connection that this has closed.
#[cold]
pub(crate) fn closed_by(connection: &Connection, reason: CloseReason) -> TransportError {
    TransportError::Closed { reason, peer: connection.peer, event: connection.cause() }
}

/// Whether a request that was flushed has closed a connection, of which the device may say why.
fn is_flush(reason: CloseReason) -> bool {
    matches!(reason, CloseReason::Work { error, .. } if error.class() == WorkErrorClass::Flushed)
}
