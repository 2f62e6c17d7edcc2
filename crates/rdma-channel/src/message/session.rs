//! One end of a connection that carries a stream or messages: the protocol, its requests, and the threads that wait.
//!
//! Any thread that waits processes completions. At most one of them sleeps until the next completion. It does so
//! without the lock, so that other threads can use the session meanwhile. Further threads wait until this one wakes.

use std::fmt;
use std::io::{self, ErrorKind};
use std::mem::{self, ManuallyDrop};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use rdma_connect::Operation;
use rdma_connect::messaging::{
    Mailbox, Options, Peer, Protocol, Requests as _, StreamState, linger_of, message_limits,
    report, report_refused,
};
use rdma_mem::{Buffer, BufferPool, Forked, ProtectionDomain};
use rdma_message::frame::Remote;
use rdma_message::{self as machine, Incoming};
use rdma_qp::CompletionChannel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::requests::{Completed, Requests};
use crate::channel::Channel;
use crate::channel::waiting::Armed;
use crate::deadline::{Deadline, NO_LIMIT, Next};
use crate::limits::Limits;
use crate::server::waker::Waker;

/// The protocol of a session, which may fetch long messages.
pub(super) trait Drive: Protocol<Requests> {
    /// Adds a message that was read into this memory. Only messages are fetched.
    fn fetched(&mut self, _: Incoming, _: Buffer) {}

    /// Continues after the message of an operation was lent.
    fn lent(&mut self, _: machine::Operation, _: Remote) {}

    /// Lends the message of an operation.
    fn lend(&mut self, _: machine::Operation, _: &mut Requests) {}
}

impl Drive for StreamState {}

impl Drive for Mailbox {
    fn fetched(&mut self, message: Incoming, buffer: Buffer) {
        self.fetched(message, buffer);
    }

    fn lent(&mut self, operation: machine::Operation, source: Remote) {
        self.lent(operation, source);
    }

    fn lend(&mut self, operation: machine::Operation, requests: &mut Requests) {
        // Threads that flush look again after each completion.
        self.lend(operation, requests, &mut Vec::new());
    }
}

/// A session, which the handles of the program share.
pub(super) struct Session<P> {
    state: Mutex<State<P>>,
    /// Notified when the state may have changed and threads wait for that.
    changed: Condvar,
    /// The number of threads that wait for the lock.
    contenders: AtomicU32,
    /// `None` if the channel spins.
    files: Option<Files>,
    limits: Limits,
    linger: Duration,
    pool: BufferPool,
    pd: ProtectionDomain,
    peer: Option<Peer>,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(super) struct State<P> {
    pub(super) protocol: P,
    pub(super) requests: Requests,
    /// Whether a thread sleeps until the next completion.
    has_sleeper: bool,
    /// Whether that thread must wake without a completion: an operation was cancelled, this end has finished, or the
    /// connection has ended. At the end, the queue pair is destroyed with its completions.
    pub(super) must_wake: bool,
    /// The number of threads that wait until the state changes.
    followers: u32,
    /// Whether the program has no handle any longer.
    is_left: bool,
}

/// The reason that a call has no result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unfinished {
    /// The time limit has expired.
    TimedOut(Duration),
    /// This is a forked child. The lock may belong to a thread that the child does not have.
    Forked(Forked),
}

impl From<Unfinished> for io::Error {
    fn from(unfinished: Unfinished) -> Self {
        match unfinished {
            Unfinished::TimedOut(limit) => Self::new(
                ErrorKind::TimedOut,
                format!("the call has not ended within its limit of {limit:?}"),
            ),
            Unfinished::Forked(forked) => Self::new(ErrorKind::NotConnected, forked),
        }
    }
}

impl<P> Session<P> {
    fn lock(&self) -> MutexGuard<'_, State<P>> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        state
    }
}

/// The number of times that a thread processes completions before it checks its limit and lets other threads use the
/// session. A peer may send without pause.
const TURN: u32 = 64;

/// The time between two polls of a session without handles whose channel cannot sleep.
const PAUSE: Duration = Duration::from_millis(1);

impl<P: Drive> Session<P> {
    /// Creates a session. Sends the first frame. It `lends` long messages if the device can.
    ///
    /// # Errors
    /// Same errors as [`Requests::new`], or if the process has too many files.
    pub(super) fn new(
        channel: Channel,
        pool: &BufferPool,
        options: &Options,
        lends: bool,
        protocol: impl FnOnce(&machine::Options) -> io::Result<P>,
    ) -> io::Result<Arc<Self>> {
        let limits = message_limits(options, lends, pool);
        let requests = Requests::new(channel, pool, options, &limits)?;
        let ledger = requests.ledger();
        let session = Self {
            changed: Condvar::new(),
            contenders: AtomicU32::new(0),
            files: Files::of(requests.channel())?,
            limits: ledger.limits,
            linger: linger_of(options),
            pool: pool.clone(),
            pd: ledger.pd.clone(),
            peer: ledger.peer_addr.map(Peer::Address).or_else(|| {
                let connection = ledger.queues.get(0)?;
                connection.peer.map(Peer::QueuePair)
            }),
            state: Mutex::new(State {
                protocol: protocol(&limits)?,
                requests,
                has_sleeper: false,
                must_wake: false,
                followers: 0,
                is_left: false,
            }),
        };
        session.with(|_| ());
        Ok(Arc::new(session))
    }

    pub(super) const fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `Unsupported` if the channel was not made by address.
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self.peer {
            Some(Peer::Address(address)) => Ok(address),
            _ => {
                let lacks = "the channel was not made by address";
                Err(io::Error::new(ErrorKind::Unsupported, lacks))
            }
        }
    }

    /// Returns the peer, for events.
    #[cfg(feature = "serde")]
    pub(super) const fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Returns false in a forked child, which does not own the session.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.pd.check_process().is_ok()
    }

    /// Calls `work`, and executes the instructions of the protocol before and after it.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State<P>) -> R) -> R {
        let mut state = self.lock();
        state.settle();
        let result = work(&mut state);
        state.settle();
        self.unlock(state);
        result
    }

    /// Calls `work` until it is ready, and waits between the calls, for the limit of this kind of operation.
    ///
    /// # Errors
    /// If the time limit has expired, or this is a forked child.
    pub(super) fn wait<R>(
        &self,
        operation: Operation,
        work: impl FnMut(&mut State<P>) -> Poll<R>,
    ) -> Result<R, Unfinished> {
        self.wait_until(&mut self.deadline(operation), work)
    }

    /// Returns the deadline of this kind of operation.
    pub(super) const fn deadline(&self, operation: Operation) -> Deadline {
        Deadline::new(self.limits.of(operation))
    }

    /// Like [`wait`](Self::wait), with the deadline of a call that may wait several times.
    ///
    /// # Errors
    /// Same errors as [`wait`](Self::wait).
    pub(super) fn wait_until<R>(
        &self,
        deadline: &mut Deadline,
        mut work: impl FnMut(&mut State<P>) -> Poll<R>,
    ) -> Result<R, Unfinished> {
        self.pd.check_process().map_err(Unfinished::Forked)?;
        let mut busy = 0_u32;
        let mut state = self.lock();
        loop {
            if let Poll::Ready(ready) = work(&mut state) {
                state.settle();
                self.unlock(state);
                return Ok(ready);
            }
            let has_polled = state.poll();
            let is_busy = state.settle() || has_polled;
            busy = busy.wrapping_add(u32::from(is_busy));
            if is_busy && !busy.is_multiple_of(TURN) {
                continue;
            }
            let next = match is_busy {
                true => deadline.check(self.limits.wait, None),
                false => self.spin(&mut state, deadline),
            };
            state = match next {
                Next::Rest(left) if !is_busy => self.rest(state, left),
                Next::Poll | Next::Rest(_) if !self.is_contended() => state,
                Next::Poll | Next::Rest(_) => self.yield_lock(state),
                Next::End => {
                    if !is_busy {
                        state.check_peer();
                    }
                    self.unlock(state);
                    return Err(Unfinished::TimedOut(deadline.limit()));
                }
            };
        }
    }

    /// Polls until a completion was processed, or the thread must do something else. Until then, nothing changes the
    /// state.
    fn spin(&self, state: &mut State<P>, deadline: &mut Deadline) -> Next {
        loop {
            let next = deadline.next(self.limits.wait, None);
            if next != Next::Poll || self.is_contended() {
                return next;
            }
            if state.poll() {
                state.settle();
                return next;
            }
        }
    }

    /// Returns true if other threads wait for the lock.
    fn is_contended(&self) -> bool {
        self.contenders.load(Ordering::Relaxed) > 0
    }

    /// Lets other threads use the session.
    fn yield_lock<'s>(&'s self, state: MutexGuard<'s, State<P>>) -> MutexGuard<'s, State<P>> {
        self.unlock(state);
        thread::yield_now();
        self.lock()
    }

    /// Pauses after an empty poll, for at most `left`, until something may have changed.
    fn rest<'s>(
        &'s self,
        mut state: MutexGuard<'s, State<P>>,
        left: Option<Duration>,
    ) -> MutexGuard<'s, State<P>> {
        let left = state.requests.left(left);
        if state.requests.retry() {
            return state;
        }
        let is_closed = state.requests.is_closed();
        if state.ends_with_peer() {
            return state;
        }
        let Some(files) = &self.files else {
            state.requests.ledger().check_peer();
            let is_left = state.is_left;
            self.unlock(state);
            if is_left {
                thread::sleep(PAUSE)
            } else {
                thread::yield_now()
            }
            return self.lock();
        };
        if state.has_sleeper {
            self.wake_sleeper(&mut state);
            state.followers += 1;
            let woken = self.changed.wait_timeout(state, left.unwrap_or(NO_LIMIT));
            let (mut state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            state.followers -= 1;
            return state;
        }
        match state.requests.ledger().arm() {
            Ok(Armed::Sleep) => {}
            Ok(Armed::Ready) => return state,
            Err(_) => {
                state.requests.break_off();
                return state;
            }
        }
        state.has_sleeper = true;
        let sleeper = Sleeper(self);
        self.unlock(state);
        let woken = files.sleep(left, !is_closed);
        let state = sleeper.wake();
        match woken {
            Woken::Event => state.requests.ledger().take_event(),
            Woken::Peer => state.requests.ledger().check_peer(),
            Woken::Nothing => {}
        }
        state
    }

    /// Releases the lock. Then frees memory and reports the end, which may call code of the program.
    fn unlock(&self, mut state: MutexGuard<'_, State<P>>) {
        self.wake_sleeper(&mut state);
        if state.followers > 0 {
            self.changed.notify_all();
        }
        let mut freed = state.requests.take_freed();
        let refused = state.requests.take_refused();
        let growth = state.requests.take_growth();
        let error = state.protocol.end().take_unreported();
        drop(state);
        if !freed.is_empty() {
            freed.clear();
            self.lock().requests.keep_freed(freed);
        }
        if let Some(length) = growth
            && self.pool.grow(length).is_err()
        {
            self.lock().requests.note_shortage(length);
        }
        if let Some((error, length)) = refused {
            report_refused(&error, length, self.peer);
        }
        if let Some(error) = error {
            report(error, self.peer);
        }
    }

    /// Wakes the thread that sleeps, if it must.
    fn wake_sleeper(&self, state: &mut State<P>) {
        if mem::take(&mut state.must_wake)
            && state.has_sleeper
            && let Some(files) = &self.files
        {
            files.waker.wake();
        }
    }

    /// Removes a handle of the program. After the last one, a thread waits until both ends have finished, and resets
    /// the connection at the limit.
    pub(super) fn leave(self: &Arc<Self>) {
        let mut state = self.lock();
        state.is_left = state.protocol.leave();
        let is_left = state.is_left;
        for _ in 0..TURN {
            if !(state.settle() || is_left && state.poll()) {
                break;
            }
        }
        let must_wait = is_left && state.protocol.end().reason().is_none();
        self.unlock(state);
        if !must_wait {
            return;
        }
        let session = Arc::clone(self);
        let linger = move || {
            let _ = session.wait_until(&mut Deadline::new(session.linger), State::poll_ended);
            session.reset();
        };
        if self.linger.is_zero() || thread::Builder::new().spawn(linger).is_err() {
            self.reset();
        }
    }

    /// Ends the session without a close frame, and waits until its requests were flushed.
    fn reset(&self) {
        self.with(|state| state.requests.reset());
        let _ = self.wait_until(&mut Deadline::new(NO_LIMIT), State::poll_ended);
    }
}

/// The thread that sleeps. Before it sleeps, it may unwind out of code of the program.
struct Sleeper<'s, P>(&'s Session<P>);

impl<'s, P> Sleeper<'s, P> {
    /// Ends the sleep. The next thread to wait may sleep.
    fn wake(self) -> MutexGuard<'s, State<P>> {
        ManuallyDrop::new(self).end()
    }

    fn end(&self) -> MutexGuard<'s, State<P>> {
        let mut state = self.0.lock();
        state.has_sleeper = false;
        if state.followers > 0 {
            self.0.changed.notify_all();
        }
        state
    }
}

impl<P> Drop for Sleeper<'_, P> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl<P: Drive> State<P> {
    /// Returns `Ready` once the connection has ended.
    fn poll_ended(&mut self) -> Poll<()> {
        match self.protocol.end().reason() {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    /// Checks whether the peer has ended, after an empty poll. On a busy processor, a short limit may expire before the
    /// first rest, where this is checked otherwise.
    fn check_peer(&mut self) {
        self.requests.ledger().check_peer();
        self.ends_with_peer();
    }

    /// Lets all requests fail if the peer is gone. Returns true if it does. The caller has polled, and found nothing.
    fn ends_with_peer(&mut self) -> bool {
        let ends = !self.requests.is_closed() && self.requests.ledger().is_peer_gone();
        if ends {
            self.requests.fail();
        }
        ends
    }

    /// Polls completions. Returns true if there were any.
    pub(super) fn poll(&mut self) -> bool {
        self.requests.poll()
    }

    /// Processes completions that were polled, and executes the instructions of the protocol. Returns true if there
    /// were any.
    fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            while let Some(output) = self.protocol.poll_output() {
                any = true;
                self.protocol.act(output, &mut self.requests, &mut Vec::new());
            }
            match self.requests.next() {
                Some(completed) => self.complete(completed),
                None if self.requests.leave() => {
                    self.protocol.lost(&mut self.requests);
                    self.must_wake = true;
                }
                None => return any,
            }
            any = true;
        }
    }

    fn complete(&mut self, completed: Completed) {
        match completed {
            Completed::Received { slot, buffer, length } => {
                self.protocol.received(slot, buffer.get(..length).unwrap_or_default());
                self.requests.slots().set_receive(slot, buffer);
            }
            Completed::Sent { slot } => self.protocol.sent(slot),
            // The thread that waits for it gets the buffer.
            Completed::Written => {}
            Completed::Fetched { message, buffer } => self.protocol.fetched(message, buffer),
            Completed::Lent { operation, source } => self.protocol.lent(operation, source),
            Completed::Lendable(operation) => self.protocol.lend(operation, &mut self.requests),
        }
    }
}

impl<P> fmt::Debug for Session<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The files that show that the session may make progress. They stay open while a thread sleeps without the lock.
#[derive(Debug)]
struct Files {
    events: CompletionChannel,
    /// Ends a sleep when another thread has ended the connection.
    waker: Waker,
    /// The stream of a watched peer, and the events to poll it for.
    stream: Option<(Arc<OwnedFd>, PollFlags)>,
}

/// The reason that a sleep has ended.
#[derive(Clone, Copy, Debug)]
enum Woken {
    /// A completion event has arrived.
    Event,
    /// The stream to the peer has ended.
    Peer,
    /// The connection or the time has ended, or a signal has arrived.
    Nothing,
}

impl Files {
    /// Returns the files of a channel that can sleep.
    ///
    /// # Errors
    /// If the process has too many files.
    fn of(channel: &Channel) -> io::Result<Option<Self>> {
        let ledger = &channel.ledger;
        let Some(events) = ledger.cq.channel().cloned() else { return Ok(None) };
        let watch = ledger.watch.as_ref().filter(|watch| watch.is_watched());
        let stream = watch.map(|watch| watch.shared_stream());
        Ok(Some(Self { events, waker: Waker::new()?, stream }))
    }

    /// Sleeps until something may have changed, or the time is over. The stream matters if the peer is `watched`.
    fn sleep(&self, left: Option<Duration>, watched: bool) -> Woken {
        // If the limit is longer than the kernel can represent, there is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let is_ready = |file: &PollFd<'_>| !file.revents().is_empty();
        let mut files = [
            PollFd::new(&self.events, PollFlags::IN),
            PollFd::new(&self.waker, PollFlags::IN),
            PollFd::new(&self.events, PollFlags::empty()),
        ];
        let count = match self.stream.as_ref().filter(|_| watched) {
            Some((stream, events)) => {
                files[2] = PollFd::new(&**stream, *events);
                3
            }
            None => 2,
        };
        // If this fails, the caller polls again.
        let _ = poll(&mut files[..count], left.as_ref());
        let [events, waker, stream] = &files;
        if is_ready(waker) {
            self.waker.take();
        }
        if is_ready(events) {
            Woken::Event
        } else if count == 3 && is_ready(stream) {
            Woken::Peer
        } else {
            Woken::Nothing
        }
    }
}
