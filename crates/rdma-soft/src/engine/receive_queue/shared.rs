//! The shared receive queue. A message for one of its queue pairs takes the queue's oldest request.
//!
//! Requests are posted, taken and waited for under one lock. A slot becomes free when the completion of its request is
//! polled, whichever queue pair the completion belongs to. Hardware behaves in the same way.
//!
//! A posting thread serves the waiters for one turn, oldest first. If the turn ends before all are served, the queue's
//! timer serves the remaining waiters of this process. A waiter in another process is only notified by a post. It
//! fetches the request later, so a waiter of this process may take that request first.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use rdma_types::AsyncEventKind;

use crate::engine::Refusal;
use crate::engine::events::report::Reporter;
use crate::engine::receive_queue::{self, Receive, ReceiveSlots, Waits, index};
use crate::engine::turn::Turn;
use crate::fabric::Fabric;
use crate::fabric::run_queue::{Entry, Task};
use crate::memory::protection::ProtectionDomain;
use crate::memory::sge::Sge;
use crate::sync::{AtomicU32, Line, Lock, Ordering};

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    /// The domain that the elements of this queue's requests are checked against (IBTA volume 1, 10.2.9). The domain of
    /// the queue pair that takes a request does not matter.
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) reporter: Reporter,
    entry: Entry,
    slots: ReceiveSlots,
    requests: Line<Lock<Requests>>,
    /// The number of released requests (free-running).
    reclaimed: Line<AtomicU32>,
}

#[derive(Debug, Default)]
struct Requests {
    /// The number of the oldest request.
    head: u64,
    /// The number of the next request, which is also the number of accepted requests.
    next: u64,
    /// The number of requests below which an event is sent. 0 if no event was requested.
    limit: u32,
    waiters: VecDeque<Waiter>,
    /// The number of queue pairs attached to this queue.
    users: usize,
}

/// A queue pair, by its ID, that received a message while no request was posted, and the message's sender.
#[derive(Debug)]
struct Waiter {
    receiver: u64,
    waits: Waits,
}

impl Requests {
    /// Returns true if there is both a waiter and a request to take.
    fn has_work(&self) -> bool {
        self.head != self.next && !self.waiters.is_empty()
    }

    /// Removes and returns the waiter that has waited longest. Waiters in other processes count only if `anywhere` is
    /// set. Returns `None` if there is no such waiter or no request to take.
    fn take_waiter(&mut self, anywhere: bool) -> Option<Arc<dyn receive_queue::Waiter>> {
        if !self.has_work() {
            return None;
        }
        // This finds the oldest waiter whose queue pair still exists.
        let next = |waiters: &mut VecDeque<Waiter>| {
            let place = waiters.iter().position(|waiter| anywhere || !waiter.waits.is_far)?;
            waiters.remove(place)
        };
        std::iter::from_fn(|| next(&mut self.waiters))
            .find_map(|waiter| waiter.waits.waiter.upgrade())
    }

    /// Registers a requester as waiting for a request. If a requester already waits for the same receiver, the new one
    /// takes its place in the list.
    fn wait(&mut self, waits: Waiter) {
        match self.waiters.iter_mut().find(|waiter| waiter.receiver == waits.receiver) {
            Some(waiter) => *waiter = waits,
            None => self.waiters.push_back(waits),
        }
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        fabric: &'static Fabric,
        pd: &Arc<ProtectionDomain>,
        max_wr: u32,
        max_sge: u32,
        reporter: Reporter,
    ) -> Result<Arc<Self>, Refusal> {
        let slots = ReceiveSlots::new(max_wr, max_sge)?;
        Ok(Arc::new_cyclic(|weak: &Weak<Self>| Self {
            pd: Arc::clone(pd),
            max_wr,
            max_sge,
            reporter,
            entry: Entry::new(fabric, weak.clone()),
            slots,
            requests: Line::default(),
            reclaimed: Line::default(),
        }))
    }

    /// Counts another queue pair that takes requests from this queue. Reserves space for its waiter, so that waiting
    /// does not allocate.
    pub(crate) fn attach(&self) {
        let mut requests = self.requests.lock();
        requests.users += 1;
        let users = requests.users;
        requests.waiters.reserve(users);
    }

    pub(crate) fn detach(&self) {
        self.requests.lock().users -= 1;
    }

    /// Removes the waiter for this queue pair, which takes no further requests.
    pub(crate) fn dismiss_waiter(&self, receiver: u64) -> Option<Weak<dyn receive_queue::Waiter>> {
        let mut requests = self.requests.lock();
        let place = requests.waiters.iter().position(|waiter| waiter.receiver == receiver)?;
        requests.waiters.remove(place).map(|waiter| waiter.waits.waiter)
    }

    /// Posts a request. Waiters resume before this returns, in the order in which they arrived, until the requests or
    /// the call's turn are used up.
    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge], turn: &mut Turn) -> Result<(), Refusal> {
        if sges.len() > self.max_sge as usize {
            return Err(Refusal::Invalid);
        }
        let has_work = {
            let mut requests = self.requests.lock();
            let reclaimed = self.reclaimed.load(Ordering::Acquire);
            if index(requests.next).wrapping_sub(reclaimed) >= self.max_wr {
                return Err(Refusal::NoRoom);
            }
            self.slots.put(requests.next, wr_id, sges);
            requests.next += 1;
            requests.has_work()
        };
        if has_work {
            self.serve(turn, true);
        }
        Ok(())
    }

    /// Wakes the waiters, one after another. Only one waiter in another process may take the request just posted.
    /// Further ones are not woken, because they would find no request.
    #[cold]
    fn serve(&self, turn: &mut Turn, mut anywhere: bool) {
        while !turn.is_exhausted() {
            // A woken waiter may already have given up. It then leaves the request to the next waiter.
            let waiter = self.requests.lock().take_waiter(anywhere);
            let Some(waiter) = waiter else { return };
            anywhere &= !waiter.receiver_is_ready(turn);
        }
        if self.requests.lock().has_work() {
            self.entry.wake();
        }
    }

    /// Takes the oldest request. Its elements are written to `out`, which is cleared first and has enough capacity. If
    /// there is no request, `waiter` (if given) is notified of the next one. The caller holds the responder's lock.
    ///
    /// `taken` counts the requests that this responder has taken, in the form in which completions release them.
    pub(crate) fn take(
        &self,
        taken: &mut u64,
        out: &mut Vec<Sge>,
        waiter: Option<(u64, Waits)>,
    ) -> Option<Receive> {
        let limit_reached;
        let receive = {
            let mut requests = self.requests.lock();
            let Some(receive) = self.slots.take(&mut requests.head, out) else {
                if let Some((receiver, waits)) = waiter {
                    requests.wait(Waiter { receiver, waits });
                }
                return None;
            };
            limit_reached = requests.next - requests.head < u64::from(requests.limit);
            if limit_reached {
                requests.limit = 0;
            }
            receive
        };
        if limit_reached {
            self.reporter.report(AsyncEventKind::SRQ_LIMIT_REACHED);
        }
        let number = *taken;
        *taken += 1;
        Some(Receive { index: index(number), ..receive })
    }

    /// Releases the slots of `count` requests.
    pub(crate) fn release_slots(&self, count: u32) {
        self.reclaimed.fetch_add(count, Ordering::AcqRel);
    }

    pub(crate) fn limit(&self) -> u32 {
        self.requests.lock().limit
    }

    /// Requests one event. It is sent when a request is taken and fewer than `limit` are left, or never if `limit` is
    /// 0.
    pub(crate) fn set_limit(&self, limit: u32) -> Result<(), Refusal> {
        if limit > self.max_wr {
            return Err(Refusal::Invalid);
        }
        self.requests.lock().limit = limit;
        Ok(())
    }
}

impl Task for SharedReceiveQueue {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        self.serve(&mut Turn::new(), false);
    }
}
