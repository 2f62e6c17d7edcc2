//! The requests of a connection, and their memory.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use rdma_connect::messaging::{
    self, Lent, LongRequests, Options, Slots, check_depths, check_limits, limits_of, linger_of,
};
use rdma_mem::{Buffer, BufferPool, RemoteMemoryRegion};
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
    has_failed: bool,
    is_closed: bool,
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
            has_failed: false,
            is_closed: false,
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
        if self.is_closed {
            return false;
        }
        let polled = self.ledger().take_completions();
        self.has_failed |= polled.is_err();
        polled.unwrap_or(true)
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

    /// Closes the connection if a request has failed. Returns true, once, if all requests have ended because of that.
    pub(super) fn must_close(&mut self) -> bool {
        let must = self.has_failed && !self.is_closed;
        if must {
            self.is_closed = true;
            self.owned.end();
        }
        must
    }

    /// Ends the connection after [`must_close`](Self::must_close), and after the completed requests were processed.
    /// Returns true, once, if it has ended.
    pub(super) fn leave(&mut self) -> bool {
        let must = self.is_closed && !mem::replace(&mut self.is_left, self.is_closed);
        if must {
            self.freed.extend(self.owned.leave());
        }
        must
    }

    /// Returns the time that is left until the close frame must have completed. Ends the session after that time.
    pub(super) fn left(&mut self, left: Option<Duration>) -> Option<Duration> {
        let Some(end_by) = self.end_by else { return left };
        let until = end_by.saturating_duration_since(Instant::now());
        self.has_failed |= until.is_zero();
        Some(left.map_or(until, |left| left.min(until)))
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
        let length = length as usize;
        let posted = match self.pool.allocate(length) {
            _ if self.is_closed => return,
            Ok(buffer) => {
                let source = RemoteMemoryRegion::new(va, length, rkey);
                self.owned.read(Request::Read(message), buffer, source)
            }
            Err(error) => {
                tracing::error!(%error, length, "a message has no memory: its connection ends");
                Err(None)
            }
        };
        if let Err(buffer) = posted {
            self.has_failed = true;
            self.freed.extend(buffer);
        }
    }

    fn lend(&mut self, _: Operation, buffer: Buffer) -> Lent {
        Lent::Refused(buffer)
    }

    fn end_loan(&mut self, _: Operation) {}

    fn free(&mut self, memory: Buffer) {
        self.freed.push(memory);
    }
}
