//! Messages that arrive: their parts, their order, and the offers that are fetched.

use alloc::collections::VecDeque;

use crate::frame::{CallId, Remote};
use crate::output::{Delivery, Incoming, Operation, Output};

/// The receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The program, in order: a message, or a request with this ID.
    Program(Option<CallId>),
    /// This call.
    Call(Operation),
    /// None: the call was cancelled.
    Discard,
}

/// The message whose parts are arriving.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) message: Incoming,
    pub(super) target: Target,
    pub(super) length: u32,
    pub(super) arrived: u32,
}

/// A message or a request that the program has not taken.
#[derive(Debug)]
struct Entry {
    message: Incoming,
    request: Option<CallId>,
    length: u32,
    /// The bytes of the peer's credit that the message holds.
    charged: u32,
    /// The number of fetched bytes that count until the message is taken.
    fetched: u32,
    is_complete: bool,
    /// Whether the driver has memory for the message.
    has_memory: bool,
}

#[derive(Debug)]
struct Offer {
    message: Incoming,
    target: Target,
    source: Remote,
    length: u32,
    /// The bytes of the peer's credit that the offer holds until it is over. The entry of a message
    /// for the program holds them instead.
    charged: u32,
    is_over: bool,
}

/// The memory and the READs that fetched messages may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchLimits {
    pub(super) reads: u32,
    pub(super) bytes: u32,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    next: u64,
    pub(super) partial: Option<Partial>,
    entries: VecDeque<Entry>,
    /// The number of entries that were delivered.
    delivered: usize,
    /// The offers that are not over, and those after them.
    offers: VecDeque<Offer>,
    /// The number of offers whose READ was posted, or that are over.
    started: usize,
    reads: u32,
    fetched_bytes: u64,
}

impl Inbox {
    fn number(&mut self) -> Incoming {
        let message = Incoming(self.next);
        self.next = self.next.wrapping_add(1);
        message
    }

    fn add_entry(&mut self, message: Incoming, request: Option<CallId>, length: u32) {
        self.entries.push_back(Entry {
            message,
            request,
            length,
            charged: 0,
            fetched: 0,
            is_complete: false,
            has_memory: false,
        });
    }

    /// Begins a message that arrives in parts.
    pub(super) fn begin(&mut self, target: Target, length: u32) {
        let message = self.number();
        if let Target::Program(request) = target {
            self.add_entry(message, request, length);
        }
        self.partial = Some(Partial { message, target, length, arrived: 0 });
    }

    /// Charges the message whose parts are arriving for a frame. Returns the bytes to release at
    /// once.
    pub(super) fn charge_part(&mut self, target: Target, cost: u32, payload: u32) -> u32 {
        let Target::Program(_) = target else { return cost };
        if let Some(entry) = self.entries.back_mut().filter(|_| payload > 0) {
            entry.has_memory = true;
        }
        self.charge(cost)
    }

    /// Charges the last message for a frame. Returns the bytes to release at once: all of them if
    /// the program has taken all earlier messages, because it then waits for this one.
    fn charge(&mut self, cost: u32) -> u32 {
        let is_first = self.entries.len() <= 1;
        match self.entries.back_mut() {
            Some(entry) if !is_first => {
                entry.charged = entry.charged.saturating_add(cost);
                0
            }
            _ => cost,
        }
    }

    /// Begins a message that is offered. Returns the bytes to release at once.
    pub(super) fn offer(&mut self, target: Target, length: u32, source: Remote, cost: u32) -> u32 {
        let message = self.number();
        let (released, charged) = match target {
            Target::Program(request) => {
                self.add_entry(message, request, length);
                (self.charge(cost), 0)
            }
            Target::Call(_) | Target::Discard => (0, cost),
        };
        self.offers.push_back(Offer { message, target, source, length, charged, is_over: false });
        released
    }

    /// Completes a message for the program.
    pub(super) fn complete(&mut self, message: Incoming) {
        let at = self.entries.partition_point(|entry| entry.message < message);
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| entry.message == message) {
            entry.is_complete = true;
        }
    }

    /// Returns the next complete message in order.
    pub(super) fn next_delivery(&mut self) -> Option<Output> {
        let entry = self.entries.get(self.delivered).filter(|entry| entry.is_complete)?;
        let delivery = entry.request.map_or(Delivery::Message, Delivery::Request);
        self.delivered = self.delivered.saturating_add(1);
        Some(Output::Deliver { message: entry.message, length: entry.length, delivery })
    }

    /// Returns true if all messages for the program were delivered.
    pub(super) fn is_delivered(&self) -> bool {
        self.delivered == self.entries.len()
    }

    /// Returns true if all offers are over.
    pub(super) fn is_fetched(&self) -> bool {
        self.offers.is_empty()
    }

    /// Removes the oldest message, which the program has taken. Returns the bytes to release.
    pub(super) fn take(&mut self, message: Incoming) -> u32 {
        let is_next = self.entries.front().is_some_and(|entry| entry.message == message);
        if !is_next || self.delivered == 0 {
            return 0;
        }
        let Some(taken) = self.entries.pop_front() else { return 0 };
        self.delivered = self.delivered.saturating_sub(1);
        self.fetched_bytes = self.fetched_bytes.saturating_sub(taken.fetched.into());
        // The program waits for the next message, so its bytes are released as they arrive.
        let last = self.entries.front_mut().filter(|entry| !entry.is_complete);
        let last = last.map_or(0, |entry| core::mem::take(&mut entry.charged));
        taken.charged.saturating_add(last)
    }

    /// Ends the wait for the reply to a call. Returns an event if memory may be in use for it.
    pub(super) fn cancel(&mut self, operation: Operation) -> Option<Output> {
        for offer in &mut self.offers {
            if offer.target == Target::Call(operation) {
                offer.target = Target::Discard;
            }
        }
        let partial = self.partial.as_mut().filter(|it| it.target == Target::Call(operation))?;
        partial.target = Target::Discard;
        (partial.arrived > 0).then_some(Output::Discard(partial.message))
    }

    /// Returns the next READ to post.
    pub(super) fn next_fetch(&mut self, limits: FetchLimits) -> Option<Output> {
        loop {
            let offer = self.offers.get_mut(self.started)?;
            if offer.target == Target::Discard {
                offer.is_over = true;
                self.started = self.started.saturating_add(1);
                continue;
            }
            if self.reads >= limits.reads {
                return None;
            }
            if let Target::Program(_) = offer.target {
                let total = self.fetched_bytes.saturating_add(offer.length.into());
                if self.fetched_bytes > 0 && total > limits.bytes.into() {
                    return None;
                }
                self.fetched_bytes = total;
                let at = self.entries.partition_point(|entry| entry.message < offer.message);
                if let Some(entry) = self.entries.get_mut(at) {
                    (entry.fetched, entry.has_memory) = (offer.length, true);
                }
            }
            self.started = self.started.saturating_add(1);
            self.reads = self.reads.saturating_add(1);
            let (message, source, length) = (offer.message, offer.source, offer.length);
            return Some(Output::Fetch { message, source, length });
        }
    }

    /// Completes a READ. Returns the receiver of the message and its length.
    pub(super) fn fetched(&mut self, message: Incoming) -> Option<(Target, u32)> {
        let at = self.offers.partition_point(|offer| offer.message < message);
        let is_started = at < self.started;
        let offer = self.offers.get_mut(at)?;
        if offer.message != message || offer.is_over || !is_started {
            return None;
        }
        offer.is_over = true;
        self.reads = self.reads.saturating_sub(1);
        Some((offer.target, offer.length))
    }

    /// Removes the oldest offer if it is over. Returns the bytes to release.
    pub(super) fn end_offer(&mut self) -> Option<u32> {
        self.offers.front().filter(|offer| offer.is_over)?;
        let offer = self.offers.pop_front()?;
        self.started = self.started.saturating_sub(1);
        Some(offer.charged)
    }

    /// Removes a message that was not delivered, after the end of the connection. Returns an event if
    /// the driver has memory for it.
    pub(super) fn end_next(&mut self) -> Option<Output> {
        if let Some(partial) = self.partial.take()
            && matches!(partial.target, Target::Call(_))
            && partial.arrived > 0
        {
            return Some(Output::Discard(partial.message));
        }
        while self.entries.len() > self.delivered {
            if let Some(entry) = self.entries.pop_back().filter(|entry| entry.has_memory) {
                return Some(Output::Discard(entry.message));
            }
        }
        while let Some(offer) = self.offers.pop_front() {
            let is_started = self.started > 0;
            self.started = self.started.saturating_sub(1);
            let is_of_program = matches!(offer.target, Target::Program(_));
            if is_started && !offer.is_over && !is_of_program {
                return Some(Output::Discard(offer.message));
            }
        }
        None
    }
}
