//! The borrower's side: its requests, the leases that it can receive, and the memory it has borrowed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_connect::LeaseEnd;
use rdma_mem::AccessFlags;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::error::LeaseDenial;
use super::frame::{Ask, LeaseFrame, Return};
use super::table::Leases;
use crate::region::descriptor::Descriptor;

/// The maximum number of the peer's leases that wait for this end's program.
const MOST_ANNOUNCED: usize = 1024;

/// A request that has not been answered yet.
#[derive(Debug)]
pub(super) struct PendingAsk {
    pub(super) number: u32,
    pub(super) epoch: u32,
    pub(super) since: Instant,
    pub(super) ask: Ask,
    /// The waiter to notify; `None` once the queue pair has ended.
    pub(super) answer: Option<oneshot::Sender<Result<Granted, LeaseDenial>>>,
    /// The permit of the request, held until the other end has answered.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl PendingAsk {
    /// Returns true if the peer granted less than was requested, or memory that is not valid.
    pub(super) fn is_violated_by(&self, access: AccessFlags, descriptor: &Descriptor) -> bool {
        let Ask { lease, length, alignment, access: asked, .. } = self.ask;
        let region = descriptor.region();
        let has_all = region.length() as u64 >= length
            && region.address().is_multiple_of(alignment.max(1))
            && access.contains(asked);
        let is_memory = region.length() > 0
            && region.address().checked_add(region.length() as u64 - 1).is_some();
        !is_memory || (lease == 0 && !has_all)
    }
}

/// Memory of the peer that this end has borrowed. Dropping this notifies the peer that the memory is no longer needed.
pub(crate) struct Granted {
    pub(super) leases: Arc<Leases>,
    pub(super) number: u32,
    pub(super) epoch: u32,
    pub(super) lease: u32,
    pub(crate) access: AccessFlags,
    pub(super) descriptor: Descriptor,
    /// Whether dropping this makes the lease wait for the program again. This is so if the peer lent the memory without
    /// a request and the program has not received it yet.
    pub(super) awaits: bool,
    /// Whether the peer has closed the lease.
    pub(super) is_closed: Arc<AtomicBool>,
    /// Whether the memory is handed over to the peer's program.
    pub(super) hands_over: AtomicBool,
    /// Whether an operation on the memory has failed.
    pub(super) has_failed: AtomicBool,
    /// Whether a request whose future was dropped may still use the memory.
    pub(super) is_detached: AtomicBool,
}

impl Granted {
    /// Returns how much time is left.
    pub(crate) fn remaining(&self) -> Duration {
        self.descriptor.remaining()
    }

    /// Returns the address and length of the memory.
    pub(crate) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Checks that a queue pair of this epoch may use the memory now.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn check(&self, epoch: u32) -> Result<(), LeaseEnd> {
        if epoch != self.epoch {
            return Err(LeaseEnd::Disconnected);
        }
        if self.remaining() <= self.leases.margin {
            return Err(LeaseEnd::TimeOver);
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(LeaseEnd::Revoked);
        }
        if self.hands_over.load(Ordering::Acquire) {
            return Err(LeaseEnd::Returned);
        }
        Ok(())
    }

    /// Hands the memory over to the peer's program, once this end no longer uses it.
    pub(crate) fn hand_over(&self) {
        self.hands_over.store(true, Ordering::Release);
    }

    /// Records that an operation on the memory failed. The lender learns of this when the memory is returned.
    pub(crate) fn note_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Records that a request continues after its future was dropped. The memory then returns to the peer only when its
    /// time is up.
    pub(crate) fn note_detached(&self) {
        self.is_detached.store(true, Ordering::Release);
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Self { number, epoch, lease, .. } = *self;
        if self.leases.is_of_this_process() {
            self.leases.forget_borrowed(lease, &self.is_closed);
            if self.awaits {
                self.leases.await_again(number, epoch, lease);
                return;
            }
            if !*self.is_detached.get_mut() {
                let how = match (*self.hands_over.get_mut(), *self.has_failed.get_mut()) {
                    (true, _) => Return::HandedOver,
                    (false, true) => Return::Failed,
                    (false, false) => Return::Dropped,
                };
                self.leases.out.send(number, epoch, &LeaseFrame::Back { lease, how });
            }
        }
    }
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted")
            .field("descriptor", &self.descriptor)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// The borrowed memory and the outstanding requests of a control connection.
#[derive(Debug, Default)]
pub(super) struct Borrower {
    asks: BTreeMap<u32, PendingAsk>,
    newest: u32,
    /// For each connection, the epoch and number of each lease that waits for the program.
    announced: BTreeMap<u32, VecDeque<(u32, u32)>>,
    /// For each lease by number, the flag to set when the peer closes it.
    borrowed: BTreeMap<u32, Arc<AtomicBool>>,
}

impl Borrower {
    /// Returns a number for a new request.
    pub(super) fn next(&mut self) -> u32 {
        loop {
            self.newest = self.newest.wrapping_add(1).max(1);
            if !self.asks.contains_key(&self.newest) {
                return self.newest;
            }
        }
    }

    pub(super) fn note_pending(&mut self, asked: PendingAsk) {
        self.asks.insert(asked.ask.ask, asked);
    }

    pub(super) fn answered(&mut self, number: u32, ask: u32) -> Option<PendingAsk> {
        self.asks.get(&ask).filter(|asked| asked.number == number)?;
        self.asks.remove(&ask)
    }

    /// Queues a lease for the program. Returns true if there is room for it.
    pub(super) fn announce(&mut self, number: u32, epoch: u32, lease: u32) -> bool {
        let count: usize = self.announced.values().map(VecDeque::len).sum();
        let has_room = count < MOST_ANNOUNCED;
        if has_room {
            self.announced.entry(number).or_default().push_back((epoch, lease));
        }
        has_room
    }

    /// Puts a lease back at the front of the queue for the program.
    pub(super) fn announce_again(&mut self, number: u32, epoch: u32, lease: u32) {
        self.announced.entry(number).or_default().push_front((epoch, lease));
    }

    pub(super) fn next_announced(&mut self, number: u32) -> Option<u32> {
        self.announced.get_mut(&number)?.pop_front().map(|(_, lease)| lease)
    }

    pub(super) fn awaits(&self, number: u32) -> bool {
        self.announced.get(&number).is_some_and(|leases| !leases.is_empty())
    }

    pub(super) fn note_borrowed(&mut self, lease: u32) -> Arc<AtomicBool> {
        Arc::clone(self.borrowed.entry(lease).or_default())
    }

    pub(super) fn forget_borrowed(&mut self, lease: u32, is_closed: &Arc<AtomicBool>) {
        if self.borrowed.get(&lease).is_some_and(|known| Arc::ptr_eq(known, is_closed)) {
            self.borrowed.remove(&lease);
        }
    }

    /// Records that the peer has closed a lease.
    pub(super) fn note_closed(&mut self, number: u32, lease: u32) {
        if let Some(is_closed) = self.borrowed.remove(&lease) {
            is_closed.store(true, Ordering::Release);
        }
        if let Some(announced) = self.announced.get_mut(&number) {
            announced.retain(|&(_, known)| known != lease);
        }
    }

    /// Ends the requests and leases of a connection's queue pairs up to this epoch. Returns the waiters that get no
    /// memory; dropping them notifies them.
    pub(super) fn end_of(
        &mut self,
        number: u32,
        epoch: u32,
    ) -> Vec<oneshot::Sender<Result<Granted, LeaseDenial>>> {
        if let Some(announced) = self.announced.get_mut(&number) {
            announced.retain(|&(of, _)| of > epoch);
            if announced.is_empty() {
                self.announced.remove(&number);
            }
        }
        let is_of = |asked: &&mut PendingAsk| asked.number == number && asked.epoch <= epoch;
        let ended = self.asks.values_mut().filter(is_of);
        ended.filter_map(|asked| asked.answer.take()).collect()
    }

    pub(super) fn end_all(&mut self) -> BTreeMap<u32, PendingAsk> {
        self.announced.clear();
        std::mem::take(&mut self.asks)
    }
}
