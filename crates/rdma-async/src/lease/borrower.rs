//! The borrower's part: what it has asked for, what awaits it, and what it has.

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

/// So many leases of the peer's can await this end's program.
const MOST_ANNOUNCED: usize = 1024;

/// What was asked for, and not answered yet.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u32,
    pub(super) epoch: u32,
    pub(super) since: Instant,
    pub(super) ask: Ask,
    /// Who is told; nobody if the queue pair has ended.
    pub(super) answer: Option<oneshot::Sender<Result<Granted, LeaseDenial>>>,
    /// One of those that may be outstanding, until the other end has answered.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Asked {
    /// Whether it has got less than it asked for, or what no memory can be.
    pub(super) fn is_cheated_by(&self, access: AccessFlags, descriptor: &Descriptor) -> bool {
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

/// Memory of the peer that this end has. Dropped, the peer is told that it is not needed any more.
pub(crate) struct Granted {
    pub(super) leases: Arc<Leases>,
    pub(super) number: u32,
    pub(super) epoch: u32,
    pub(super) lease: u32,
    pub(crate) access: AccessFlags,
    pub(super) descriptor: Descriptor,
    /// What was lent, and not asked for, and that nobody has taken yet, awaits the program again.
    pub(super) awaits: bool,
    /// The peer has closed it.
    pub(super) is_over: Arc<AtomicBool>,
    /// The peer's program is to have it.
    pub(super) gives: AtomicBool,
    /// An operation on it has failed.
    pub(super) has_failed: AtomicBool,
    /// A request that names it may still be with the device, and nobody knows when it is over.
    pub(super) is_forsaken: AtomicBool,
}

impl Granted {
    /// How much time is left.
    pub(crate) fn remaining(&self) -> Duration {
        self.descriptor.remaining()
    }

    /// How long the memory is, in bytes, and where.
    pub(crate) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Whether it may be used now by a queue pair of that epoch.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn check(&self, epoch: u32) -> Result<(), LeaseEnd> {
        if epoch != self.epoch {
            return Err(LeaseEnd::Disconnected);
        }
        if self.remaining() <= self.leases.margin {
            return Err(LeaseEnd::TimeOver);
        }
        if self.is_over.load(Ordering::Acquire) {
            return Err(LeaseEnd::Revoked);
        }
        if self.gives.load(Ordering::Acquire) {
            return Err(LeaseEnd::Returned);
        }
        Ok(())
    }

    /// The peer's program is to have it, when nothing here uses it any more.
    pub(crate) fn hand_over(&self) {
        self.gives.store(true, Ordering::Release);
    }

    /// An operation on it has failed: the lender learns that when it has the memory back.
    pub(crate) fn note_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// A request that names it goes on, and nobody waits for it: the peer has it back when its time is over.
    pub(crate) fn note_forsaken(&self) {
        self.is_forsaken.store(true, Ordering::Release);
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Self { number, epoch, lease, .. } = *self;
        if self.leases.is_of_this_process() {
            self.leases.forget_borrowed(lease, &self.is_over);
            if self.awaits {
                self.leases.await_again(number, epoch, lease);
                return;
            }
            if !*self.is_forsaken.get_mut() {
                let how = match (*self.gives.get_mut(), *self.has_failed.get_mut()) {
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

/// All that is borrowed by a control connection.
#[derive(Debug, Default)]
pub(super) struct Borrower {
    asks: BTreeMap<u32, Asked>,
    newest: u32,
    /// By connection, the epoch and the number of each lease.
    announced: BTreeMap<u32, VecDeque<(u32, u32)>>,
    /// Who is told when the peer closes a lease.
    borrowed: BTreeMap<u32, Arc<AtomicBool>>,
}

impl Borrower {
    /// A number for what is asked for.
    pub(super) fn next(&mut self) -> u32 {
        loop {
            self.newest = self.newest.wrapping_add(1).max(1);
            if !self.asks.contains_key(&self.newest) {
                return self.newest;
            }
        }
    }

    pub(super) fn note_asked(&mut self, asked: Asked) {
        self.asks.insert(asked.ask.ask, asked);
    }

    pub(super) fn answered(&mut self, number: u32, ask: u32) -> Option<Asked> {
        self.asks.get(&ask).filter(|asked| asked.number == number)?;
        self.asks.remove(&ask)
    }

    /// Memory awaits this end. Whether there is room for it.
    pub(super) fn announce(&mut self, number: u32, epoch: u32, lease: u32) -> bool {
        let count: usize = self.announced.values().map(VecDeque::len).sum();
        let has_room = count < MOST_ANNOUNCED;
        if has_room {
            self.announced.entry(number).or_default().push_back((epoch, lease));
        }
        has_room
    }

    /// Memory awaits this end again, before all others.
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

    pub(super) fn forget_borrowed(&mut self, lease: u32, is_over: &Arc<AtomicBool>) {
        if self.borrowed.get(&lease).is_some_and(|known| Arc::ptr_eq(known, is_over)) {
            self.borrowed.remove(&lease);
        }
    }

    /// The peer has closed a lease.
    pub(super) fn note_over(&mut self, number: u32, lease: u32) {
        if let Some(is_over) = self.borrowed.remove(&lease) {
            is_over.store(true, Ordering::Release);
        }
        if let Some(announced) = self.announced.get_mut(&number) {
            announced.retain(|&(_, known)| known != lease);
        }
    }

    /// The queue pairs of a connection have ended, up to that epoch. Who is to be told that there will be no memory, by being
    /// dropped.
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
        let is_of = |asked: &&mut Asked| asked.number == number && asked.epoch <= epoch;
        let ended = self.asks.values_mut().filter(is_of);
        ended.filter_map(|asked| asked.answer.take()).collect()
    }

    pub(super) fn end_all(&mut self) -> BTreeMap<u32, Asked> {
        self.announced.clear();
        std::mem::take(&mut self.asks)
    }
}
