//! The requests of a connection, and their memory.

use std::io;
use std::mem;
use std::ops::Range;
use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_connect::messaging::{
    self, LeaseRequests, Lender, Lent, LongRequests, Options, RETRY, Shortage, Slots, Window,
    check_depths, check_limits, linger_of,
};
use rdma_mem::{AccessFlags, Buffer, BufferPool, Error, RemoteMemoryRegion};
use rdma_message::frame::{CloseReason, Remote};
use rdma_message::{Incoming, Operation, Options as Limits};

use super::owned::{Memory, Owned};
use crate::channel::Channel;
use crate::ledger::Ledger;

/// A request that has completed.
#[derive(Debug)]
pub(super) enum Completed {
    /// A frame has arrived in the memory of this slot.
    Received { slot: u32, buffer: Buffer, length: usize },
    /// The SEND of this slot.
    Sent { slot: u32 },
    /// The WRITE of the program.
    Written,
    /// The message was read into this buffer.
    Fetched { message: Incoming, buffer: Buffer },
    /// The peer can read the message of this operation at this address.
    Lent { operation: Operation, source: Remote },
    /// A window is free for the message of this operation.
    Lendable(Operation),
}

#[derive(Clone, Copy, Debug)]
enum Request {
    /// The receive of this slot.
    Receive(u32),
    /// The SEND of this slot.
    Frame(u32),
    /// The READ of this message.
    Read(Incoming),
    /// The [`Write`] of the program.
    Write,
    /// The bind of this lease.
    Bind(usize),
    /// The invalidation of this lease.
    Invalidate(usize),
}

/// The READ of a message.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    message: Incoming,
    source: RemoteMemoryRegion,
}

/// The WRITE of the program. There is one at a time.
#[derive(Debug, Default)]
enum Write {
    #[default]
    None,
    Posted,
    /// It is posted, and the program does not wait for it.
    Abandoned,
    Completed(Buffer),
}

/// The posted requests of a connection, and the memory of its free slots.
#[derive(Debug)]
pub(super) struct Requests {
    owned: Owned<Request>,
    slots: Slots,
    pool: BufferPool,
    lender: Lender,
    /// The length that the pool is to grow by when the session is not locked.
    growth: Option<usize>,
    shortage: Shortage,
    /// The memory to free when the session is not locked.
    freed: Vec<Memory>,
    linger: Duration,
    /// The time at which the session ends although its close frame has not completed.
    end_by: Option<Instant>,
    write: Write,
    /// The messages that wait for memory.
    waiting: Vec<Fetch>,
    /// The time at which they are tried again.
    retry_at: Option<Instant>,
    /// The error of the last message that has begun to wait, until it is reported.
    refused: Option<(Error, usize)>,
    /// Whether the program was informed that messages wait, since the last one was fetched.
    is_reported: bool,
    has_failed: bool,
    is_closed: bool,
    /// The time until which the requests may be flushed.
    flush_by: Option<Instant>,
    is_left: bool,
}

impl Requests {
    /// Allocates the memory of a connection, and posts its receives.
    ///
    /// # Errors
    /// `InvalidInput` if a limit is outside its range, or the queues are too short. Otherwise an error of the pool.
    pub(super) fn new(
        channel: Channel,
        pool: &BufferPool,
        options: &Options,
        limits: &Limits,
    ) -> io::Result<Self> {
        check_limits(options)?;
        check_depths(options, channel.depths().into())?;
        let allocate = |length| pool.allocate_aligned(length, Slots::ALIGNMENT);
        let buffers: Result<Vec<_>, _> = Slots::lengths(limits).map(allocate).collect();
        let mut requests = Self {
            owned: Owned::new(channel),
            slots: Slots::new(limits, buffers.map_err(io::Error::other)?),
            pool: pool.clone(),
            lender: Lender::new(limits.offers as usize),
            growth: None,
            shortage: Shortage::default(),
            freed: Vec::new(),
            linger: linger_of(options),
            end_by: None,
            write: Write::None,
            waiting: Vec::new(),
            retry_at: None,
            refused: None,
            is_reported: false,
            has_failed: false,
            is_closed: false,
            flush_by: None,
            is_left: false,
        };
        (0..limits.receive_slots())
            .for_each(|slot| messaging::Requests::post_receive(&mut requests, slot));
        Ok(requests)
    }

    pub(super) const fn ledger(&self) -> &Ledger {
        &self.owned.channel().ledger
    }

    pub(super) const fn channel(&self) -> &Channel {
        self.owned.channel()
    }

    /// Polls completions. Returns true if there were any.
    pub(super) fn poll(&mut self) -> bool {
        if self.is_left {
            return false;
        }
        let polled = self.ledger().take_completions();
        if polled.is_err() {
            self.break_off();
        }
        polled.unwrap_or(true)
    }

    /// Ends the session, because no completion can be polled any longer. Does not wait until requests are flushed.
    pub(super) fn break_off(&mut self) {
        self.has_failed = true;
        self.flush_by = None;
    }

    /// Returns the next request that has completed, as far as completions were polled.
    pub(super) fn next(&mut self) -> Option<Completed> {
        while let Some((request, result, memory)) = self.owned.next() {
            let completed = match (request, result, memory) {
                (Request::Receive(slot), Ok(success), Memory::Buffer(buffer)) => {
                    let length = success.scattered_bytes().unwrap_or(0);
                    Some(Completed::Received { slot, buffer, length })
                }
                (Request::Frame(slot), result, Memory::Buffer(buffer)) => {
                    self.slots.set_send(slot, Some(buffer));
                    self.has_failed |= result.is_err();
                    result.is_ok().then_some(Completed::Sent { slot })
                }
                (Request::Read(message), Ok(_), Memory::Buffer(buffer)) => {
                    Some(Completed::Fetched { message, buffer })
                }
                (Request::Write, Ok(_), Memory::Buffer(buffer)) => {
                    if matches!(self.write, Write::Posted) {
                        self.write = Write::Completed(buffer);
                    } else {
                        self.freed.push(Memory::Buffer(buffer));
                        self.write = Write::None;
                    }
                    Some(Completed::Written)
                }
                (Request::Bind(lease), Ok(_), Memory::Window(window)) => {
                    let lent = self.with_lender(|lender, it| lender.bound(lease, window, it));
                    lent.map(|(operation, source)| Completed::Lent { operation, source })
                }
                (Request::Invalidate(lease), Ok(_), Memory::Window(window)) => self
                    .with_lender(|lender, it| lender.invalidated(lease, window, it))
                    .map(Completed::Lendable),
                (_, _, memory) => {
                    self.has_failed = true;
                    self.freed.push(memory);
                    None
                }
            };
            if completed.is_some() {
                return completed;
            }
        }
        None
    }

    fn with_lender<T>(&mut self, work: impl FnOnce(&mut Lender, &mut Self) -> T) -> T {
        let mut lender = mem::take(&mut self.lender);
        let result = work(&mut lender, self);
        self.lender = lender;
        result
    }

    /// Returns the length that the pool is to grow by, once.
    pub(super) const fn take_growth(&mut self) -> Option<usize> {
        self.growth.take()
    }

    /// Notes that the pool could not grow by this length.
    pub(super) fn note_shortage(&mut self, length: usize) {
        self.shortage.note(length, Instant::now());
    }

    /// Returns true if the requests are being flushed, or have been.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Closes the connection if a request has failed. The device then flushes all requests.
    fn close(&mut self) {
        if self.has_failed && !self.is_closed {
            self.is_closed = true;
            self.waiting.clear();
            self.flush();
        }
    }

    fn flush(&mut self) {
        let limit = self.ledger().limits.flush;
        let is_flushing = self.owned.close();
        self.flush_by = Instant::now().checked_add(limit).filter(|_| is_flushing);
    }

    /// Ends the session without a close frame.
    pub(super) fn reset(&mut self) {
        self.has_failed = true;
        if self.is_closed && !self.is_left {
            self.flush();
        }
    }

    /// Closes the connection if a request has failed, and ends it after its requests were flushed, or the time for that
    /// has passed. Called after the completed requests were processed. Returns true, once, if it has ended.
    pub(super) fn leave(&mut self) -> bool {
        self.close();
        if !self.is_closed || self.is_left {
            return false;
        }
        let is_flushing = self.flush_by.is_some_and(|end| Instant::now() < end);
        self.is_left = self.owned.is_empty() || !is_flushing;
        if self.is_left {
            self.freed.extend(self.owned.leave());
            self.with_lender(Lender::close);
            // No later frame needs the memory of the slots.
            self.slots.close();
        }
        self.is_left
    }

    /// Returns the time until which the session may wait for completions. Then its close frame must have completed, its
    /// requests must have been flushed, or fetches are tried again.
    pub(super) fn left(&mut self, left: Option<Duration>) -> Option<Duration> {
        let ends =
            [self.end_by.filter(|_| !self.is_closed), self.flush_by.filter(|_| !self.is_left)];
        let ends = ends.into_iter().chain([self.retry_at]).flatten();
        let Some(end) = ends.min() else { return left };
        let now = Instant::now();
        self.has_failed |= self.end_by.is_some_and(|end| end <= now);
        let until = end.saturating_duration_since(now);
        Some(left.map_or(until, |left| left.min(until)))
    }

    /// Tries to fetch the messages that wait for memory, if it is time for that. Returns true if one is fetched.
    pub(super) fn retry(&mut self) -> bool {
        let Some(_) = self.retry_at.filter(|&at| at <= Instant::now()) else { return false };
        self.retry_at = None;
        let waiting = mem::take(&mut self.waiting);
        let count = waiting.len();
        waiting.into_iter().for_each(|fetch| self.try_fetch(fetch));
        self.waiting.len() < count
    }

    /// Posts the READ of a message if there is memory for it. Otherwise the message waits.
    fn try_fetch(&mut self, fetch: Fetch) {
        let Fetch { message, source } = fetch;
        let posted = match self.pool.allocate(source.length()) {
            _ if self.is_closed => return,
            Ok(buffer) => self.owned.read(Request::Read(message), buffer, source),
            Err(error) => {
                self.waiting.push(fetch);
                if self.retry_at.is_none() {
                    self.retry_at = Instant::now().checked_add(RETRY);
                }
                if !self.is_reported {
                    self.refused = Some((error, source.length()));
                }
                self.is_reported = true;
                return;
            }
        };
        match posted {
            Ok(()) => self.is_reported = false,
            Err(buffer) => {
                self.has_failed = true;
                self.freed.extend(buffer.map(Memory::Buffer));
            }
        }
    }

    /// Posts a WRITE of the program once all earlier requests of the send queue are over. Then the software device writes
    /// to a mapped region at once.
    pub(super) fn poll_write(
        &mut self,
        buffer: &mut Option<Buffer>,
        part: &Range<usize>,
        target: RemoteMemoryRegion,
    ) -> Poll<()> {
        if self.is_closed || buffer.is_none() {
            return Poll::Ready(());
        }
        if self.owned.is_sending() || !matches!(self.write, Write::None) {
            return Poll::Pending;
        }
        if let Some(buffer) = buffer.take() {
            match self.owned.write(Request::Write, buffer, part, target) {
                Ok(()) => self.write = Write::Posted,
                Err(buffer) => {
                    self.has_failed = true;
                    self.freed.extend(buffer.map(Memory::Buffer));
                }
            }
        }
        Poll::Ready(())
    }

    /// Ready with the memory of the WRITE that was posted, or `None` if the connection ends.
    pub(super) fn poll_written(&mut self) -> Poll<Option<Buffer>> {
        match mem::take(&mut self.write) {
            Write::Completed(buffer) => Poll::Ready(Some(buffer)),
            Write::Posted if !self.is_closed => {
                self.write = Write::Posted;
                Poll::Pending
            }
            _ => Poll::Ready(None),
        }
    }

    /// Frees the memory of the WRITE, once it is over.
    pub(super) fn abandon_write(&mut self) {
        match mem::take(&mut self.write) {
            Write::Completed(buffer) => self.freed.push(Memory::Buffer(buffer)),
            Write::Posted | Write::Abandoned => self.write = Write::Abandoned,
            Write::None => {}
        }
    }

    /// Returns the error and the length of a message that has begun to wait for memory, once.
    pub(super) const fn take_refused(&mut self) -> Option<(Error, usize)> {
        self.refused.take()
    }

    pub(super) fn take_freed(&mut self) -> Vec<Memory> {
        self.freed.extend(self.slots.take_unused().into_iter().map(Memory::Buffer));
        // An empty list keeps its allocation.
        if self.freed.is_empty() { Vec::new() } else { mem::take(&mut self.freed) }
    }

    /// Keeps the allocation of a list that was taken and is empty.
    pub(super) fn keep_freed(&mut self, empty: Vec<Memory>) {
        if self.freed.capacity() == 0 {
            self.freed = empty;
        }
    }
}

impl messaging::Requests for Requests {
    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn receive(&mut self, slot: u32, buffer: Buffer) {
        if self.is_closed {
            return self.slots.set_receive(slot, buffer);
        }
        if let Err(buffer) = self.owned.receive(Request::Receive(slot), buffer) {
            self.has_failed = true;
            self.freed.extend(buffer.map(Memory::Buffer));
        }
    }

    fn send(&mut self, slot: u32, buffer: Buffer, length: usize, closing: Option<CloseReason>) {
        if self.is_closed {
            return self.slots.set_send(slot, Some(buffer));
        }
        if closing.is_some_and(|reason| reason != CloseReason::FINISHED) {
            self.end_by = Instant::now().checked_add(self.linger);
        }
        if let Err(buffer) = self.owned.send(Request::Frame(slot), buffer, length) {
            self.has_failed = true;
            self.slots.set_send(slot, buffer);
        }
    }

    fn fail(&mut self) {
        self.has_failed = true;
    }
}

impl LongRequests for Requests {
    fn stage(&mut self, length: usize) -> Option<Buffer> {
        let buffer = self.pool.try_allocate(length).ok()?;
        if buffer.is_none() && self.shortage.may_grow(length, Instant::now()) {
            self.growth = Some(length);
        }
        buffer
    }

    fn fetch(&mut self, message: Incoming, Remote { va, rkey }: Remote, length: u32) {
        let source = RemoteMemoryRegion::new(va, length as usize, rkey);
        self.try_fetch(Fetch { message, source });
    }

    fn lend(&mut self, operation: Operation, buffer: Buffer) -> Lent {
        let pool = self.pool.clone();
        self.with_lender(|lender, it| lender.lend(operation, buffer, &pool, it))
    }

    fn end_lease(&mut self, operation: Operation) {
        self.with_lender(|lender, it| lender.end(operation, it));
    }

    fn free(&mut self, memory: Buffer) {
        self.freed.push(Memory::Buffer(memory));
    }
}

impl LeaseRequests for Requests {
    fn bind(&mut self, lease: usize, window: Window<Buffer>) -> Result<(), Window<Buffer>> {
        if self.is_closed {
            return Err(window);
        }
        let (range, access) = (0..window.memory().len(), AccessFlags::REMOTE_READ);
        match self.owned.bind(Request::Bind(lease), window, range, access) {
            Err(Some(window)) => Err(window),
            // The device may have bound the window. The connection ends.
            Err(None) => {
                self.has_failed = true;
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn invalidate(&mut self, lease: usize, window: Window<Buffer>) {
        if self.is_closed {
            return self.deallocate(window);
        }
        if let Err(window) = self.owned.invalidate(Request::Invalidate(lease), window) {
            self.has_failed = true;
            self.freed.extend(window.map(Memory::Window));
        }
    }

    fn deallocate(&mut self, window: Window<Buffer>) {
        self.freed.push(Memory::Window(window));
    }

    fn free(&mut self, memory: Buffer) {
        self.freed.push(Memory::Buffer(memory));
    }
}
