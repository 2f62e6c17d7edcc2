//! The shared receive queue: requests of which each of its queue pairs takes the oldest when a message
//! comes for it.
//!
//! One lock, under which requests are posted, taken, and waited for. As on hardware a slot is free again
//! when the completion of its request was polled, by whichever queue pair.
//!
//! Who posts serves those who wait, for a turn. If that is over before all are served, the queue
//! has a timer that does the rest: so they keep their order, and none is informed of a request
//! that is another's.

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
    /// Its elements are checked against this domain, not against the queue pair's that takes them (IBTA
    /// volume 1, 10.2.9).
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) reporter: Reporter,
    entry: Entry,
    slots: ReceiveSlots,
    requests: Line<Lock<Requests>>,
    /// How many requests were given back (free-running).
    reclaimed: Line<AtomicU32>,
}

#[derive(Debug, Default)]
struct Requests {
    /// The number of the oldest request.
    head: u64,
    /// The number of the next request: how many were accepted.
    next: u64,
    /// An event is sent when fewer are left; 0 if none was asked for.
    limit: u32,
    waiters: VecDeque<Waiter>,
    /// How many queue pairs take from here.
    users: usize,
}

/// A queue pair for which a message came when there was no request, by its id, and the message's sender.
#[derive(Debug)]
struct Waiter {
    receiver: u64,
    waits: Waits,
}

impl Requests {
    /// Whether there is somebody who waits, and a request to take.
    fn has_work(&self) -> bool {
        self.head != self.next && !self.waiters.is_empty()
    }

    /// Removes and returns the waiter that has waited longest, in this process or `anywhere`, and whether it is in another
    /// process. `None` without a request to take.
    fn take_waiter(&mut self, anywhere: bool) -> Option<(Arc<dyn receive_queue::Waiter>, bool)> {
        if !self.has_work() {
            return None;
        }
        // The oldest whose queue pair still exists.
        let next = |waiters: &mut VecDeque<Waiter>| {
            let place = waiters.iter().position(|waiter| anywhere || !waiter.waits.is_far)?;
            waiters.remove(place)
        };
        std::iter::from_fn(|| next(&mut self.waiters)).find_map(|Waiter { waits, .. }| {
            let waiter = waits.waiter.upgrade()?;
            Some((waiter, waits.is_far))
        })
    }

    /// Has the requester told of a request; who waits already keeps its place.
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

    /// A queue pair was made that takes from here: makes space, so that waiting does not allocate.
    pub(crate) fn attach(&self) {
        let mut requests = self.requests.lock();
        requests.users += 1;
        let users = requests.users;
        requests.waiters.reserve(users);
    }

    pub(crate) fn detach(&self) {
        self.requests.lock().users -= 1;
    }

    /// Who waits for a request for this queue pair, which takes none any more.
    pub(crate) fn dismiss_waiter(&self, receiver: u64) -> Option<Weak<dyn receive_queue::Waiter>> {
        let mut requests = self.requests.lock();
        let place = requests.waiters.iter().position(|waiter| waiter.receiver == receiver)?;
        requests.waiters.remove(place).map(|waiter| waiter.waits.waiter)
    }

    /// Posts a request. Those who wait for one go on before this returns, in the order in which they
    /// came, as long as there are requests and the call's turn lasts.
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

    /// Wakes the waiters, one after the other. Of those in other processes only one is woken, for the request that was just
    /// posted: the others would find no request.
    #[cold]
    fn serve(&self, turn: &mut Turn, mut anywhere: bool) {
        while !turn.is_over() {
            // Who is woken may have given up meanwhile, and leaves the request to the next.
            let waiter = self.requests.lock().take_waiter(anywhere);
            let Some((waiter, is_far)) = waiter else { return };
            anywhere &= !is_far;
            waiter.receiver_is_ready(turn);
        }
        if self.requests.lock().has_work() {
            self.entry.wake();
        }
    }

    /// Takes the oldest request; its elements go to `out`, which is emptied first and has space. If
    /// there is none, the requester is informed when there is, if it waits. The responder's lock is
    /// held.
    ///
    /// `taken` counts what this responder takes, as its completions give it back.
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

    /// That many requests are done with.
    pub(crate) fn give_back(&self, count: u32) {
        self.reclaimed.fetch_add(count, Ordering::AcqRel);
    }

    pub(crate) fn limit(&self) -> u32 {
        self.requests.lock().limit
    }

    /// Asks for one event, for when a request is taken and fewer than that are left; 0 for none.
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
