//! One end of a connection that carries a stream or messages: the protocol, its requests, and the tasks that wait.
//!
//! No task belongs to a session. The tasks of the program process completions when they call the session. While they
//! wait, completions are processed by the thread that polls them, because the waker of the awaited request does so.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::{fmt, mem};

use rdma_connect::messaging::{
    Arrived, Peer, Protocol, Requests as _, Slots, StreamFrame, StreamState, WriteCursor, report,
};

use super::linger::Linger;
use super::requests::{Completed, Long, Requests, post_frame};
use super::turns::{self, Turn};
use crate::buffer::held::sealed::Lease as _;
use crate::connection::Connection;
use crate::ledger::after::contain_panic;
use crate::ledger::slots::Id;

/// The protocol of a session, which also has the requests of long messages.
pub(super) trait Drive: Protocol<Requests> {
    /// Processes the completion of a request for a long message. Only messages have such requests. Adds the tasks to wake
    /// to the last argument.
    fn long_completed(&mut self, _: Long, _: &mut Requests, _: &mut Vec<Waker>) {}

    /// Stores the session, which calls this once.
    fn enter(&mut self, _: &Weak<Session<Self>>)
    where
        Self: Sized,
    {
    }
}

impl Drive for StreamState {}

/// A session, which the handles of the program share.
pub(super) struct Session<P> {
    state: Mutex<State<P>>,
    connection: Connection,
    waker: Waker,
    linger: Linger,
    this: Weak<Self>,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(super) struct State<P> {
    pub(super) protocol: P,
    pub(super) requests: Requests,
    /// The tasks to wake after the lock is released.
    pub(super) woken: Vec<Waker>,
}

impl<P: Drive> Session<P> {
    /// Creates a session and posts its receives.
    pub(super) fn new(
        connection: Connection,
        slots: Slots,
        mut protocol: P,
        linger: Linger,
    ) -> Arc<Self> {
        let receives = slots.receives();
        let mut requests = Requests::new(connection.clone(), slots);
        (0..receives).for_each(|slot| requests.post_receive(slot));
        Arc::new_cyclic(|session| {
            protocol.enter(session);
            let state = Mutex::new(State { protocol, requests, woken: Vec::new() });
            let waker = Waker::from(Arc::new(Hook(Weak::clone(session))));
            Self { state, connection, waker, linger, this: Weak::clone(session) }
        })
    }

    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) const fn linger(&self) -> &Linger {
        &self.linger
    }

    /// Returns the address of the peer's control connection.
    ///
    /// # Errors
    /// `Unsupported` if the connection was not made by address.
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let member = self.connection.inner().member();
        let lacks =
            || io::Error::new(ErrorKind::Unsupported, "the connection was not made by address");
        member.map(|member| member.shared.address()).ok_or_else(lacks)
    }

    /// Returns the peer, for events.
    pub(super) fn peer(&self) -> Option<Peer> {
        let address = self.peer_addr().ok().map(Peer::Address);
        address.or_else(|| self.connection.peer().map(Peer::QueuePair))
    }

    /// Returns false in a forked child, which does not own the session.
    pub(super) fn is_of_this_process(&self) -> bool {
        is_of_this_process(&self.connection)
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` after processing what was delivered. Afterwards executes the instructions of the protocol, and wakes
    /// tasks.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State<P>) -> R) -> R {
        let _turn = turns::begin();
        let mut state = self.lock();
        state.settle();
        let result = work(&mut state);
        self.finish(state);
        result
    }

    /// Calls `work` like [`with`](Self::with). If it is not ready, polls the completion queue and calls it again, with the
    /// waker of the task.
    pub(super) fn poll_with<R>(
        &self,
        cx: &Context<'_>,
        mut work: impl FnMut(&mut State<P>, &mut Option<Waker>) -> Poll<R>,
    ) -> Poll<R> {
        self.poll_twice(cx, |waker| self.with(|state| work(state, waker)))
    }

    /// Calls `work`. If it is not ready, polls the completion queue and calls it again, with the waker of the task.
    fn poll_twice<R>(
        &self,
        cx: &Context<'_>,
        mut work: impl FnMut(&mut Option<Waker>) -> Poll<R>,
    ) -> Poll<R> {
        // Cloned and dropped without the lock, because both are code of the program. Dropping the waker of another task
        // may drop that task's future, and with it another handle of this session.
        let mut waker = None;
        if let Poll::Ready(ready) = work(&mut waker) {
            return Poll::Ready(ready);
        }
        self.poll();
        waker = Some(cx.waker().clone());
        work(&mut waker)
    }

    /// Polls the completion queue.
    pub(super) fn poll(&self) {
        let _turn = turns::begin();
        // If the completion queue fails, all requests end.
        let _ = self.connection.inner().ledger.progress();
    }

    /// Executes the instructions of the protocol, and releases the lock. Only then polls the completion queue, closes
    /// the connection, and wakes tasks, because all of these run the wakers of other tasks.
    fn finish<'s>(&'s self, mut state: MutexGuard<'s, State<P>>) {
        let mut armed = Ok(false);
        loop {
            state.execute();
            if state.requests.must_close() {
                drop(state);
                close(&self.connection);
                state = self.lock();
                let left = state.end();
                // Runs the wakers of other tasks.
                drop(state);
                left.into_iter().for_each(|id| self.connection.inner().detach(id));
                state = self.lock();
                continue;
            }
            let awaits = state.protocol.awaits();
            if state.requests.await_next(awaits, &self.waker, &mut armed) {
                break;
            }
            state.settle();
        }
        let ended = state.protocol.end().take_unreported();
        let mut woken =
            if state.woken.is_empty() { Vec::new() } else { mem::take(&mut state.woken) };
        let has_failed = state.requests.closes_with_error();
        let unused = state.requests.slots().take_unused();
        drop(state);
        unused.into_iter().for_each(|memory| turns::free(memory.into_held()));
        if has_failed {
            self.linger.limit_end(Weak::clone(&self.this));
        }
        self.connection.inner().ledger.note_armed(armed);
        if !woken.is_empty() {
            woken.drain(..).for_each(|waker| contain_panic(|| waker.wake()));
            // Keeps the allocation.
            let mut state = self.lock();
            if state.woken.capacity() == 0 {
                state.woken = woken;
            }
        }
        // Last, because the program's subscriber may panic.
        if let Some(error) = ended {
            report(error, self.peer());
        }
    }
}

impl<P: Drive> State<P> {
    /// Processes completions that were delivered, and executes the instructions of the protocol. Earlier instructions were
    /// executed by the call that caused them.
    fn settle(&mut self) {
        while let Some(completed) = self.requests.next() {
            self.complete(completed);
            self.execute();
        }
    }

    /// Executes the instructions of the protocol.
    fn execute(&mut self) {
        while let Some(output) = self.protocol.poll_output() {
            self.protocol.act(output, &mut self.requests, &mut self.woken);
        }
    }

    fn complete(&mut self, completed: Completed) {
        match completed {
            Completed::Received { slot, buffer, length } => {
                self.protocol.received(slot, buffer.get(..length).unwrap_or_default());
                self.requests.slots().set_receive(slot, buffer);
            }
            Completed::Sent { slot } => self.protocol.sent(slot),
            Completed::Long(long) => {
                self.protocol.long_completed(long, &mut self.requests, &mut self.woken);
            }
        }
    }

    /// Ends the protocol after the connection was closed, and after what had completed before. No later frame needs the
    /// memory of the slots. Returns the requests to [detach](Requests::leave).
    #[must_use]
    fn end(&mut self) -> Vec<Id> {
        self.settle();
        let left = self.requests.leave();
        self.protocol.lost(&mut self.requests);
        self.requests.slots().close();
        left
    }
}

impl<P: Drive> Turn for Session<P> {
    fn run(&self) {
        self.with(|_| ());
    }
}

impl State<StreamState> {
    /// Returns the memory of a chunk to its slot.
    pub(super) fn release(&mut self, arrived: Arrived) {
        self.protocol.release(arrived, &mut self.requests);
    }

    /// Releases what has arrived, and discards what arrives later.
    pub(super) fn stop(&mut self) {
        self.protocol.stop(&mut self.requests);
    }
}

impl Session<StreamState> {
    /// Posts as many of the bytes as can be posted now. Returns their number. The lock is not held while bytes are copied
    /// and posted, so that the other half can read.
    ///
    /// # Errors
    /// If the stream accepts no bytes, and none of these was posted.
    pub(super) fn poll_write(
        &self,
        cx: &Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut write = WriteCursor::new(bytes);
        self.poll_twice(cx, |waker| {
            let _turn = turns::begin();
            let mut state = self.lock();
            state.settle();
            // The other half may free slots meanwhile, so without a limit this would post any number of frames.
            let mut left = state.requests.slots().sends();
            let end = loop {
                let State { protocol, requests, .. } = &mut *state;
                let frame = match protocol.poll_frame(&write, waker, requests) {
                    Poll::Ready(Ok(Some(frame))) => frame,
                    end => break end.map_ok(|_| ()),
                };
                drop(state);
                state = self.post(frame, &mut write);
                left -= 1;
                if left == 0 {
                    break Poll::Ready(Ok(()));
                }
            };
            let must_poll = state.protocol.must_poll();
            self.finish(state);
            if must_poll {
                self.poll();
            }
            end.map_ok(|()| write.written())
        })
    }

    /// Writes the next bytes to a frame and posts it. Returns the locked state.
    fn post(
        &self,
        frame: StreamFrame,
        write: &mut WriteCursor<'_, '_>,
    ) -> MutexGuard<'_, State<StreamState>> {
        let (slot, buffer, length) = frame.fill(write);
        let posted = post_frame(&self.connection, buffer, length);
        let mut state = self.lock();
        let orphan = state.requests.note_posted(slot, posted);
        state.protocol.posted();
        if let Some(orphan) = orphan {
            // Runs the wakers of other tasks.
            drop(state);
            self.connection.inner().detach(orphan);
            state = self.lock();
        }
        state
    }
}

/// Returns false in a forked child, which does not own the connection.
pub(super) fn is_of_this_process(connection: &Connection) -> bool {
    connection.pd().context().check_process().is_ok()
}

/// Closes a connection. An event reports a failure.
pub(super) fn close(connection: &Connection) {
    if let Err(error) = connection.close() {
        tracing::error!(%error, "a queue pair could not be destroyed: its memory stays in use");
    }
}

impl<P> fmt::Debug for Session<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.connection).finish()
    }
}

/// The waker of the requests of a session.
struct Hook<P>(Weak<Session<P>>);

impl<P: Drive> Wake for Hook<P> {
    fn wake(self: Arc<Self>) {
        if let Some(session) = self.0.upgrade() {
            turns::wake(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdma_message::frame::{Body, Frame, Hello, Limits, Mode};

    use super::*;
    use crate::mock::{NicOutcome, Rig, Sleeper};

    /// Such a completion causes no event, so the session polls again. If it did not, the reader would sleep forever.
    #[test]
    fn a_completion_between_the_last_poll_and_the_request_for_an_event_wakes_the_reader() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _runtime = runtime.enter();
        let rig = Rig::new();
        let mut limits = rdma_message::Options::default();
        (limits.receives, limits.sends) = (2, 4);
        (limits.receive_bytes, limits.send_bytes, limits.window_bytes) = (64, 64, 128);
        let connection = rig.connect([limits.sends, limits.receive_slots()]);
        let buffers = Slots::lengths(&limits).map(|length| rig.pool.allocate(length).unwrap());
        let protocol = StreamState::new(rdma_message::Stream::new(&limits).unwrap());
        let slots = Slots::new(&limits, buffers);
        let session = Session::new(connection, slots, protocol, Linger::new(Duration::ZERO));
        let hello = Hello {
            version: Hello::VERSION,
            mode: Mode::Stream,
            fetches: false,
            receive_bytes: 64,
            max_message: 0,
            calls: 0,
        };
        let of_peer = Limits { receives: 2, bytes: 128, fetched: 0 };
        for (body, payload) in [(Body::Hello(hello), &b""[..]), (Body::Data, b"data")] {
            let header = Frame::new(of_peer, body).encode();
            rig.nic.end(0, NicOutcome::Done(&[header.as_bytes(), payload].concat()));
        }
        // Nothing has polled these completions when the session requests an event.
        let reader = Arc::<Sleeper>::default();
        let next = |waker| session.with(|state| state.protocol.poll_next(&mut Some(waker)));
        assert!(next(reader.waker()).is_pending());
        assert_eq!(reader.take_wakes(), 1);
        assert!(matches!(next(reader.waker()), Poll::Ready(Ok(Some(_)))));
    }
}
