//! The requests of a connection, and their memory.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use rdma_connect::messaging::{
    self, Lent, LongRequests, Options, RETRY, Slots, check_depths, check_limits, limits_of,
    linger_of,
};
use rdma_mem::{Buffer, BufferPool, Error, RemoteMemoryRegion};
use rdma_message::frame::{CloseReason, Remote};
use rdma_message::{Incoming, Operation};

use super::owned::Owned;
use crate::channel::Channel;
use crate::ledger::Ledger;

/// A request that has completed.
#[derive(Debug)]
pub(super) enum Completed {
    /// A frame has arrived in the memory of this slot.
    Received { slot: u32, buffer: Buffer, length: usize },
    /// The SEND of this slot.
    Sent { slot: u32 },
    /// The message was read into this buffer.
    Fetched { message: Incoming, buffer: Buffer },
}

#[derive(Clone, Copy, Debug)]
enum Request {
    /// The receive of this slot.
    Receive(u32),
    /// The SEND of this slot.
    Frame(u32),
    /// The READ of this message.
    Read(Incoming),
}

/// The READ of a message.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    message: Incoming,
    source: RemoteMemoryRegion,
}

/// The posted requests of a connection, and the memory of its free slots.
#[derive(Debug)]
pub(super) struct Requests {
    owned: Owned<Request>,
    slots: Slots,
    pool: BufferPool,
    /// The memory to free when the session is not locked.
    freed: Vec<Buffer>,
    linger: Duration,
    /// The time at which the session ends although its close frame has not completed.
    end_by: Option<Instant>,
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
    pub(super) fn new(channel: Channel, pool: &BufferPool, options: &Options) -> io::Result<Self> {
        check_limits(options)?;
        check_depths(options, channel.depths().into())?;
        let limits = limits_of(options, false);
        let allocate = |length| pool.allocate_aligned(length, Slots::ALIGNMENT);
        let buffers: Result<Vec<_>, _> = Slots::lengths(&limits).map(allocate).collect();
        let mut requests = Self {
            owned: Owned::new(channel),
            slots: Slots::new(&limits, buffers.map_err(io::Error::other)?),
            pool: pool.clone(),
            freed: Vec::new(),
            linger: linger_of(options),
            end_by: None,
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
        while let Some((request, result, buffer)) = self.owned.next() {
            match (request, result) {
                (Request::Receive(slot), Ok(success)) => {
                    let length = success.scattered_bytes().unwrap_or(0);
                    return Some(Completed::Received { slot, buffer, length });
                }
                (Request::Frame(slot), result) => {
                    self.slots.set_send(slot, Some(buffer));
                    if result.is_ok() {
                        return Some(Completed::Sent { slot });
                    }
                    self.has_failed = true;
                }
                (Request::Read(message), Ok(_)) => {
                    return Some(Completed::Fetched { message, buffer });
                }
                (Request::Receive(_) | Request::Read(_), Err(_)) => {
                    self.has_failed = true;
                    self.freed.push(buffer);
                }
            }
        }
        None
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
        }
        self.is_left
    }

    /// Returns the time until which the session may wait for completions: until its close frame must have completed,
    /// its requests must have been flushed, or fetches are tried again. Ends the session after the first of these times.
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
                self.freed.extend(buffer);
            }
        }
    }

    /// Returns the error and the length of a message that has begun to wait for memory, once.
    pub(super) const fn take_refused(&mut self) -> Option<(Error, usize)> {
        self.refused.take()
    }

    pub(super) fn take_freed(&mut self) -> Vec<Buffer> {
        mem::take(&mut self.freed)
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
            self.freed.extend(buffer);
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
    fn pool(&self) -> &BufferPool {
        &self.pool
    }

    fn stage(&mut self, _: usize) -> Option<Buffer> {
        None
    }

    fn fetch(&mut self, message: Incoming, Remote { va, rkey }: Remote, length: u32) {
        let source = RemoteMemoryRegion::new(va, length as usize, rkey);
        self.try_fetch(Fetch { message, source });
    }

    fn lend(&mut self, _: Operation, buffer: Buffer) -> Lent {
        Lent::Refused(buffer)
    }

    fn end_loan(&mut self, _: Operation) {}

    fn free(&mut self, memory: Buffer) {
        self.freed.push(memory);
    }
}
