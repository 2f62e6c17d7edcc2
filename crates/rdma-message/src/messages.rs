//! Messages, requests and replies.

mod calls;
mod inbox;
mod local;
mod outgoing;
mod receive;
mod transmit;

use alloc::collections::VecDeque;

use crate::counters::Counters;
use crate::error::{ConnectionError, OperationError};
use crate::frame::{Mode, Role};
use crate::link::{Finish, Link};
use crate::options::{Options, OptionsError};
use crate::output::{Operation, Output};

use calls::{Calls, Requests};
use inbox::{FetchLimits, Inbox};
use outgoing::Operations;

/// One end of a connection that carries messages.
///
/// The driver reports events, and after each of them polls [`poll_output`](Self::poll_output) until
/// it returns `None`. It owns all memory: this machine only refers to bytes by slot, operation and
/// offset.
///
/// - **Sending.** [`send`](Self::send), [`call`](Self::call) and [`reply`](Self::reply) start an
///   operation. Messages leave in the order of these calls, and are delivered in this order.
/// - **Completion.** Each operation ends with one [`Output::Completed`]. A message is complete when
///   the peer's device has received it, or when the peer has fetched it.
/// - **Receiving.** The driver keeps the [parts](Output::Part) of each message until the message is
///   [delivered](Output::Deliver) and the program takes it.
/// - **Calls.** A reply needs no receive by the program. But replies arrive in order with the peer's
///   messages, so an end that calls must also take the messages.
/// - **End.** After [`finish`](Self::finish) this end sends nothing further. The peer may still
///   send, until it is notified that this end has [stopped](Self::stop) receiving. After
///   [`abort`](Self::abort), or an error, pending operations fail.
#[derive(Debug)]
pub struct Messages {
    link: Link,
    events: VecDeque<Output>,
    operations: Operations,
    calls: Calls,
    requests: Requests,
    inbox: Inbox,
    /// Whether the end of the peer's messages was reported.
    end_reported: bool,
    /// The value of the peer's count of fetched messages that was processed.
    peer_fetched: u32,
}

impl Messages {
    /// Creates an end. [`Options::receive_slots`] receives must be posted before the connection is
    /// established.
    ///
    /// # Errors
    ///
    /// Fails if a limit is outside its range.
    pub fn new(options: &Options) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self {
            link: Link::new(options, Mode::Messages),
            events: VecDeque::new(),
            operations: Operations::default(),
            calls: Calls::default(),
            requests: Requests::new(options.calls),
            inbox: Inbox::default(),
            end_reported: false,
            peer_fetched: 0,
        })
    }

    /// Ends the connection because of a decision of the program. The peer receives a close frame.
    /// [`Output::Disconnect`] follows.
    pub fn abort(&mut self) {
        self.link.fail(ConnectionError::Aborted);
    }

    /// Ends the connection: the queue pair is in the error state, and no request is pending. All
    /// operations complete now, since the device no longer uses their memory.
    pub fn lost(&mut self) {
        if self.link.has_ended() {
            return;
        }
        let mut is_over = true;
        for index in 0..self.operations.indices() {
            let Some((operation, mut outgoing)) = self.operations.end(index) else { continue };
            if self.link.peer_has_all {
                outgoing.in_flight = 0;
            }
            is_over &= outgoing.is_over();
            let result = outgoing.result_at_end();
            self.events.push_back(Output::Completed { operation, result });
        }
        if is_over && self.link.flush() {
            self.events.push_back(Output::Flushed);
        }
        let peer_end = self.peer_end();
        self.events.extend(peer_end);
        while let Some(discard) = self.inbox.end_next() {
            self.events.push_back(discard);
        }
        // A peer that has finished and has everything may end without waiting for the end of this end.
        let has_all = self.link.finish == Finish::Done || is_over && !self.requests.await_answer();
        self.events.push_back(self.link.end(self.end_reported && has_all));
    }

    /// Returns the next instruction or event.
    pub fn poll_output(&mut self) -> Option<Output> {
        let was_open = self.link.is_open();
        // For an open link, `poll_first` only posts receives.
        if (!was_open || self.link.has_reposts())
            && let Some(output) = self.link.poll_first()
        {
            self.events.extend(self.link.opened_since(was_open));
            return Some(output);
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.link.is_open() {
            return None;
        }
        if let Some(output) = self.poll_transmit() {
            return Some(output);
        }
        if !self.inbox.is_fetched() {
            let options = &self.link.options;
            let limits = FetchLimits { reads: options.reads, bytes: options.fetch_bytes };
            let fetch = self.inbox.next_fetch(limits);
            self.end_offers();
            if fetch.is_some() {
                return fetch;
            }
        }
        self.link.poll_control().or_else(|| self.poll_end())
    }

    /// Returns the events at the end of a connection whose ends have finished.
    fn poll_end(&mut self) -> Option<Output> {
        if let Some(end) = self.peer_end() {
            return Some(end);
        }
        if self.operations.live() == 0 && self.link.flush() {
            return Some(Output::Flushed);
        }
        if self.link.finish == Finish::Done && self.end_reported && self.inbox.is_fetched() {
            self.link.close();
            return self.link.poll_first();
        }
        None
    }

    /// Returns the end of the peer's messages, once, after all of them.
    fn peer_end(&mut self) -> Option<Output> {
        let is_new = self.link.peer_finished && !self.end_reported && self.inbox.is_delivered();
        self.end_reported |= is_new;
        is_new.then_some(Output::PeerFinished)
    }

    /// Returns true if a message was fetched and no frame could count it yet. The peer waits for the
    /// frame, so the driver processes completions although the program waits for none.
    #[must_use]
    pub fn owes_count(&self) -> bool {
        self.link.is_open() && self.link.fetched != self.link.stated_fetched
    }

    /// Returns true if the refusal of a request could not be sent yet. The peer's call waits for it, so the
    /// driver processes completions although the program waits for none.
    #[must_use]
    pub fn owes_refusal(&self) -> bool {
        self.link.is_open() && self.requests.next_refusal().is_some()
    }

    /// Returns true if an operation has its result, but not the completions of its SENDs. A call is such an
    /// operation if its reply arrives before the acknowledgement of its request. Nothing else reports the
    /// end of the operation, so the driver processes completions of SENDs.
    #[must_use]
    pub const fn awaits_sent(&self) -> bool {
        self.operations.await_sent()
    }

    /// Returns the error that ends the connection, as soon as this end knows it.
    #[must_use]
    pub const fn error(&self) -> Option<ConnectionError> {
        self.link.error
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.link.counters
    }

    /// Records the result of an operation, unless it has one.
    fn conclude(&mut self, operation: Operation, result: Result<(), OperationError>) {
        if self.operations.find(operation).is_some() {
            self.operations.change(operation.index, |it| _ = it.result.get_or_insert(result));
            self.settle(operation.index);
        }
    }

    /// Ends an operation if nothing refers to it any longer.
    fn settle(&mut self, index: u32) {
        let Some((operation, outgoing)) = self.operations.settle(index) else { return };
        if let Role::Request(id) = outgoing.role
            && !outgoing.has_begun
        {
            self.calls.end(id);
        }
        if let Some(result) = outgoing.result {
            self.events.push_back(Output::Completed { operation, result });
        }
    }

    /// Counts the peer's oldest offers that are over.
    fn end_offers(&mut self) {
        while let Some(bytes) = self.inbox.end_offer() {
            self.link.bytes.release(bytes);
            self.link.fetched = self.link.fetched.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests;
