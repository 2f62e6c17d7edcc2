//! The SENDs and receives of a connection, and their memory.

use std::collections::VecDeque;
use std::io;
use std::task::Waker;

use rdma_connect::messaging::{
    self, LeaseRequests, Options, Slots, Window, check_limits, limits_of,
};
use rdma_mem::{AccessFlags, Buffer, RemoteMemoryRegion};
use rdma_message::frame::CloseReason;
use rdma_message::{Incoming, RESERVED_SENDS};
use rdma_qp::Error;

use super::turns;
use crate::buffer::held::Held;
use crate::buffer::held::sealed::Lease;
use crate::buffer::pool::Pool;
use crate::buffer::view::BufferExt as _;
use crate::connection::Connection;
use crate::ledger::Ended;
use crate::ledger::post::RequestSpec;
use crate::ledger::slots::Id;
use crate::link::Link;
use crate::operation::kinds::{Kind, Read, Receive, Received, SendOut, take};
use crate::region::kinds::{Bind, Invalidate};

/// Checks the limits, and allocates the memory of a connection.
///
/// # Errors
/// If a limit is outside its range, or the pool cannot grow.
pub(super) async fn allocate(pool: &Pool, options: &Options) -> io::Result<Slots> {
    check_limits(options)?;
    let (limits, mut buffers) = (limits_of(options, true), Vec::new());
    for length in Slots::lengths(&limits) {
        let buffer = pool.allocate_aligned(length, Slots::ALIGNMENT).await;
        buffers.push(buffer.map_err(io::Error::other)?);
    }
    Ok(Slots::new(&limits, buffers))
}

/// Posts the SEND of a frame. Other threads may use the session meanwhile.
///
/// # Errors
/// Returns the memory if the request was not posted.
pub(super) fn post_frame(
    connection: &Connection,
    buffer: Buffer,
    length: usize,
) -> Result<Id, Buffer> {
    let mut part = Some(buffer.slice(0..length));
    let (request, inner) = (RequestSpec::SolicitedSend, connection.inner());
    let posted = inner.post::<SendOut<_>>(&request, &mut part, &mut false);
    posted.map_err(|_| take(&mut part).into_inner())
}

/// A request that has completed.
#[derive(Debug)]
pub(super) enum Completed {
    /// A frame has arrived in the memory of this slot.
    Received { slot: u32, buffer: Buffer, length: usize },
    /// The SEND of this slot.
    Sent { slot: u32 },
    /// A request for a long message.
    Long(Long),
}

/// A request for a long message that has completed.
#[derive(Debug)]
pub(super) enum Long {
    /// The window of this lease is bound.
    Bound { lease: usize, window: Window<Buffer> },
    /// The window of this lease is no longer bound.
    Invalidated { lease: usize, window: Window<Buffer> },
    /// The message was read into this buffer.
    Fetched { message: Incoming, buffer: Buffer },
}

/// A request in the send queue.
#[derive(Clone, Copy, Debug)]
enum SendRequest {
    /// The SEND of this slot.
    Frame(u32),
    /// The bind of this lease.
    Bind(usize),
    /// The invalidation of this lease.
    Invalidate(usize),
    /// The READ of this message.
    Read(Incoming),
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
enum Posted {
    /// The receive of this slot.
    Receive(u32),
    Send(SendRequest),
}

/// The posted requests of one queue in order of posting.
#[derive(Debug)]
struct Queue<T> {
    posted: VecDeque<(T, Id)>,
    /// The request that wakes the connection when it ends.
    awaited: Option<Id>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { posted: VecDeque::new(), awaited: None }
    }
}

/// The posted requests of a connection, and the memory of its free slots.
#[derive(Debug)]
pub(super) struct Requests {
    connection: Connection,
    slots: Slots,
    receives: Queue<u32>,
    sends: Queue<SendRequest>,
    /// The number of requests for long messages that have not completed.
    long: usize,
    /// The epoch of the queue pair, for windows.
    epoch: u32,
    /// The reason in the close frame, if it was sent.
    closing: Option<CloseReason>,
    /// Whether the caller knows that the connection ends because of an error.
    is_reported: bool,
    has_failed: bool,
    is_closed: bool,
}

impl Requests {
    pub(super) fn new(connection: Connection, slots: Slots) -> Self {
        let epoch = connection.epoch();
        Self {
            connection,
            slots,
            receives: Queue::default(),
            sends: Queue::default(),
            long: 0,
            epoch,
            closing: None,
            is_reported: false,
            has_failed: false,
            is_closed: false,
        }
    }

    /// Posts a request for a window, unless the queue pair has been replaced.
    fn post_window<K: Kind<Memory = Window<Buffer>>>(
        &mut self,
        request: &RequestSpec,
        kind: SendRequest,
        window: Window<Buffer>,
    ) -> Result<(), Window<Buffer>> {
        if self.is_closed {
            return Err(window);
        }
        let mut window = Some(window);
        match self.connection.inner().post_in_epoch::<K>(request, self.epoch, &mut window) {
            Ok(id) => {
                self.long += 1;
                self.sends.posted.push_back((kind, id));
                Ok(())
            }
            Err(_) => Err(take(&mut window)),
        }
    }

    /// Posts the READ of a message.
    pub(super) fn read(&mut self, message: Incoming, source: RemoteMemoryRegion, into: Buffer) {
        if let Ok(id) = self.post::<Read<_>>(&RequestSpec::Read(source), into) {
            self.long += 1;
            self.sends.posted.push_back((SendRequest::Read(message), id));
        }
    }

    /// Posts a request, unless the connection has failed.
    ///
    /// # Errors
    /// Returns the memory if the request was not posted.
    fn post<K: Kind>(&mut self, request: &RequestSpec, memory: K::Memory) -> Result<Id, K::Memory> {
        if self.is_closed {
            return Err(memory);
        }
        let mut memory = Some(memory);
        let posted = self.connection.inner().post::<K>(request, &mut memory, &mut false);
        self.has_failed |= posted.is_err();
        posted.map_err(|_| take(&mut memory))
    }

    /// Adds the SEND of a slot to the posted requests, or sets the slot's memory again if it was not posted. Returns the
    /// SEND if the connection was closed while it was posted. The caller then detaches it without the lock.
    #[must_use]
    pub(super) fn note_posted(&mut self, slot: u32, posted: Result<Id, Buffer>) -> Option<Id> {
        match posted {
            Ok(id) if self.is_closed => return Some(id),
            Ok(id) => self.sends.posted.push_back((SendRequest::Frame(slot), id)),
            Err(buffer) => {
                self.has_failed = true;
                self.slots.set_send(slot, Some(buffer));
            }
        }
        None
    }

    /// Returns the next request that has completed, as far as completions were delivered. Requests of one queue complete
    /// in order.
    pub(super) fn next(&mut self) -> Option<Completed> {
        loop {
            let (request, ended, held) = self.take_ended()?;
            let completed = match request {
                Posted::Receive(slot) => self.end_receive(slot, &ended, held),
                Posted::Send(SendRequest::Frame(slot)) => self.end_send(slot, &ended, held),
                Posted::Send(request) => self.end_long(request, ended, held),
            };
            if completed.is_some() {
                return completed;
            }
        }
    }

    /// Takes the oldest request of a queue, if it has ended. Receives come first.
    fn take_ended(&mut self) -> Option<(Posted, Ended, Held)> {
        let (receive, send) = (self.receives.posted.front(), self.sends.posted.front());
        let receive = receive.map(|&(slot, id)| (Posted::Receive(slot), id));
        let send = send.map(|&(request, id)| (Posted::Send(request), id));
        let (ledger, mut held) = (&self.connection.inner().ledger, None);
        let mut table = ledger.lock();
        let found = [receive, send].into_iter().flatten().find_map(|(request, id)| {
            let ended = table.take(id, &mut held)?;
            Some((request, ended))
        });
        ledger.unlock(table);
        let (request, ended) = found?;
        match request {
            Posted::Receive(_) => _ = self.receives.posted.pop_front(),
            Posted::Send(_) => _ = self.sends.posted.pop_front(),
        }
        Some((request, ended, held?))
    }

    fn end_receive(&mut self, slot: u32, ended: &Ended, mut held: Held) -> Option<Completed> {
        let buffer = Buffer::take_from(&mut held)?;
        if let Some(Ok(success)) = &ended.result {
            let received = Received::new(buffer, success);
            let length = received.bytes().len();
            return Some(Completed::Received { slot, buffer: received.memory, length });
        }
        self.has_failed = true;
        self.slots.set_receive(slot, buffer);
        None
    }

    fn end_send(&mut self, slot: u32, ended: &Ended, mut held: Held) -> Option<Completed> {
        self.slots.set_send(slot, Buffer::take_from(&mut held));
        if matches!(ended.result, Some(Ok(_))) {
            return Some(Completed::Sent { slot });
        }
        self.has_failed = true;
        None
    }

    /// Ends a request for a long message. The window of a failed one is deallocated before its memory is used again.
    #[cold]
    fn end_long(
        &mut self,
        request: SendRequest,
        ended: Ended,
        mut held: Held,
    ) -> Option<Completed> {
        self.long -= 1;
        let is_success = matches!(ended.result, Some(Ok(_)));
        self.has_failed |= !is_success;
        let long = match request {
            _ if !is_success => {
                turns::free(held);
                return None;
            }
            SendRequest::Frame(_) => return None,
            SendRequest::Bind(lease) => {
                Long::Bound { lease, window: Window::take_from(&mut held)? }
            }
            SendRequest::Invalidate(lease) => {
                let link = &mut Some(Link::Borrowed(self.connection.inner()));
                let window = &mut Window::take_from(&mut held);
                let window = ended.outcome::<Invalidate<_>>(window, link).ok()?;
                Long::Invalidated { lease, window }
            }
            SendRequest::Read(message) => {
                Long::Fetched { message, buffer: Buffer::take_from(&mut held)? }
            }
        };
        Some(Completed::Long(long))
    }

    /// Returns true, once, if the caller must close the connection because a request has failed.
    pub(super) const fn must_close(&mut self) -> bool {
        let must = self.has_failed && !self.is_closed;
        self.is_closed |= must;
        must
    }

    /// Returns true, once, if a close frame because of an error was sent. The session ends when it completes, which may
    /// take arbitrarily long.
    pub(super) fn closes_with_error(&mut self) -> bool {
        let has_error = self.closing.is_some_and(|reason| reason != CloseReason::FINISHED);
        let is_news = has_error && !self.is_reported;
        self.is_reported |= is_news;
        is_news
    }

    /// Returns the requests that have not ended. The caller detaches them without the lock, which leaves their memory to
    /// the connection.
    #[must_use]
    pub(super) fn leave(&mut self) -> Vec<Id> {
        self.long = 0;
        let receives = self.receives.posted.drain(..).map(|(_, id)| id);
        receives.chain(self.sends.posted.drain(..).map(|(_, id)| id)).collect()
    }

    /// Makes the next completion of the chosen queues wake the session. Returns false if there is one already. Adds the
    /// result of arming to `armed`, for [`Ledger::note_armed`](crate::ledger::Ledger::note_armed).
    pub(super) fn await_next(
        &mut self,
        (receives, sends): (bool, bool),
        waker: &Waker,
        armed: &mut Result<bool, Error>,
    ) -> bool {
        // The session ends with the completion of the close frame. The memory of long messages is freed when their
        // requests complete, and the peer may wait for that. A frame may wait for a free slot.
        let frames = self.sends.posted.len() - self.long;
        let is_short = frames + RESERVED_SENDS as usize >= self.slots.sends();
        let sends = sends || self.closing.is_some() || self.long > 0 || is_short;
        let first = |is_chosen: bool, id: Option<Id>| id.filter(|_| is_chosen);
        let receive = first(receives, self.receives.posted.front().map(|&(_, id)| id));
        let send = first(sends, self.sends.posted.front().map(|&(_, id)| id));
        // The peer makes the completions of receives solicited.
        let queues =
            [(receive, true, &mut self.receives.awaited), (send, false, &mut self.sends.awaited)];
        for (first, is_solicited, awaited) in queues {
            let Some(id) = first.filter(|_| *awaited != first) else { continue };
            let inner = self.connection.inner();
            let mut table = inner.ledger.lock();
            // An earlier waker can only be that of this session.
            let before = table.await_end(id, waker.clone(), is_solicited);
            if !table.at(inner.entry).is_in_flight(id) {
                return false;
            }
            let now = table.arm(inner.ledger.cq());
            drop(table);
            drop(before);
            *awaited = Some(id);
            match (&mut *armed, now) {
                (Ok(was), Ok(is)) => *was |= is,
                (Ok(_), error) => *armed = error,
                (Err(_), _) => {}
            }
        }
        true
    }
}

impl LeaseRequests for Requests {
    fn bind(&mut self, lease: usize, window: Window<Buffer>) -> Result<(), Window<Buffer>> {
        let request = RequestSpec::Bind(0, window.memory().len(), AccessFlags::REMOTE_READ);
        self.post_window::<Bind<_>>(&request, SendRequest::Bind(lease), window)
    }

    fn invalidate(&mut self, lease: usize, window: Window<Buffer>) {
        let Some((key, _)) = window.remote() else { return };
        let request = RequestSpec::Invalidate(key);
        let kind = SendRequest::Invalidate(lease);
        if let Err(window) = self.post_window::<Invalidate<_>>(&request, kind, window) {
            self.has_failed = true;
            self.deallocate(window);
        }
    }

    fn deallocate(&mut self, window: Window<Buffer>) {
        turns::free(window.into_held());
    }

    fn free(&mut self, memory: Buffer) {
        turns::free(memory.into_held());
    }
}

impl messaging::Requests for Requests {
    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn receive(&mut self, slot: u32, buffer: Buffer) {
        match self.post::<Receive<_>>(&RequestSpec::Receive, buffer) {
            Ok(id) => self.receives.posted.push_back((slot, id)),
            Err(buffer) => self.slots.set_receive(slot, buffer),
        }
    }

    fn send(&mut self, slot: u32, buffer: Buffer, length: usize, closing: Option<CloseReason>) {
        self.closing = closing.or(self.closing);
        if self.is_closed {
            return self.slots.set_send(slot, Some(buffer));
        }
        let posted = post_frame(&self.connection, buffer, length);
        let orphan = self.note_posted(slot, posted);
        debug_assert!(orphan.is_none(), "the connection was not closed under the lock");
    }

    fn fail(&mut self) {
        self.has_failed = true;
    }
}

#[cfg(test)]
mod tests {
    use rdma_connect::messaging::Requests as _;

    use super::*;
    use crate::mock::{NicOutcome, Rig};

    #[test]
    fn the_arming_for_one_queue_is_reported_if_the_request_of_the_other_has_ended() {
        let rig = Rig::new();
        let connection = rig.connect([1, 1]);
        let ledger = &connection.inner().ledger;
        let mut limits = rdma_message::Options::default();
        (limits.receives, limits.sends) = (0, 1);
        let slots = Slots::new(&limits, (0..=limits.receive_slots()).map(|_| rig.buffer()));
        let mut requests = Requests::new(connection.clone(), slots);
        requests.post_receive(0);
        requests.post_send(0, b"header", |_| 0);
        // Another thread has delivered the completion of the SEND.
        rig.nic.end(1, NicOutcome::Done(b""));
        ledger.progress().unwrap();
        let mut armed = Ok(false);
        assert!(!requests.await_next((true, true), Waker::noop(), &mut armed));
        assert!(matches!(requests.next(), Some(Completed::Sent { slot: 0 })));
        assert!(requests.await_next((true, true), Waker::noop(), &mut armed));
        // The caller polls again, because an earlier completion of the receive causes no event.
        assert!(matches!(armed, Ok(true)), "{armed:?}");
    }

    /// One half of a stream may close the connection while the other one posts a frame.
    #[test]
    fn a_send_that_is_posted_during_a_close_leaves_its_memory_to_the_connection() {
        let rig = Rig::new();
        let connection = rig.connect([1, 1]);
        let limits = rdma_message::Options::default();
        let mut requests = Requests::new(connection.clone(), Slots::new(&limits, []));
        let posted = post_frame(&connection, rig.buffer(), 1);
        requests.fail();
        assert!(requests.must_close());
        let orphan = requests.note_posted(0, posted).unwrap();
        connection.inner().detach(orphan);
        assert_eq!(rig.pool.usage().buffers, 1);
        rig.nic.end(0, NicOutcome::Done(b""));
        connection.inner().ledger.progress().unwrap();
        assert_eq!(rig.pool.usage().buffers, 0);
    }

    /// A frame is solicited, so its receiver need not be woken by the completions of its own SENDs.
    #[test]
    fn only_an_awaited_send_lets_every_completion_wake_the_session() {
        let rig = Rig::new();
        let connection = rig.connect([1, 1]);
        let mut limits = rdma_message::Options::default();
        (limits.receives, limits.sends) = (0, 2 + RESERVED_SENDS);
        let slots = Slots::new(&limits, Slots::lengths(&limits).map(|_| rig.buffer()));
        let mut requests = Requests::new(connection.clone(), slots);
        requests.post_receive(0);
        let wait = |requests: &mut Requests, sends| {
            let mut armed = Ok(false);
            assert!(requests.await_next((true, sends), Waker::noop(), &mut armed));
            armed.unwrap()
        };
        assert_eq!([wait(&mut requests, false), wait(&mut requests, false)], [true, false]);
        assert!(rig.nic.asked_solicited());
        requests.post_send(0, b"header", |_| 0);
        assert!(!wait(&mut requests, false));
        // Another completion must now cause an event.
        assert!(wait(&mut requests, true) && !rig.nic.asked_solicited());
        rig.nic.end(1, NicOutcome::Done(b""));
        assert!(rig.nic.wait_for_event());
        rig.driver.0.sweep(false).unwrap();
        assert!(rig.nic.asked_solicited());
        assert!(matches!(requests.next(), Some(Completed::Sent { slot: 0 })));
        assert!(!wait(&mut requests, false));
        requests.leave().into_iter().for_each(|id| connection.inner().detach(id));
    }

    /// The program sleeps until any request completes, also one that no task awaits.
    #[test]
    fn a_manual_driver_is_armed_for_every_completion_while_a_session_waits_for_frames() {
        let rig = Rig::new();
        let connection = rig.connect([1, 1]);
        let mut limits = rdma_message::Options::default();
        (limits.receives, limits.sends) = (0, 1);
        let slots = Slots::new(&limits, (0..=limits.receive_slots()).map(|_| rig.buffer()));
        let mut requests = Requests::new(connection.clone(), slots);
        requests.post_receive(0);
        assert!(requests.await_next((true, false), Waker::noop(), &mut Ok(false)));
        let sweep = |always| {
            rig.driver.0.sweep(always).unwrap();
            rig.nic.asked_solicited()
        };
        // The queue stays armed for any completion until the event has been received.
        assert_eq!([false, true, false].map(sweep), [true, false, false]);
        rig.nic.end(0, NicOutcome::Done(b""));
        assert!(!sweep(true));
        requests.leave().into_iter().for_each(|id| connection.inner().detach(id));
    }
}
