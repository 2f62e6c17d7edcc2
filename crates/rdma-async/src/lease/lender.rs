//! The lender's side: the memory that it has lent, until it is closed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rdma_connect::LeaseEnd;
use rdma_mem::{AccessFlags, CommonMemory, CommonRegion, Error, ProtectionDomain, SharedRegion};
use tokio::sync::oneshot;

use super::limits::Counted;
use super::own::EndedLease;
use crate::ledger::after::contain_panic;
use crate::region::descriptor::Descriptor;
use crate::region::memory::Region;
use crate::region::reserve::ReserveError;
use crate::sync::{LONGEST, now};

/// Returns the instant that is this duration from now, or `None` if the duration is infinite.
pub(super) fn deadline_after(time: Duration) -> Option<Instant> {
    (time <= LONGEST).then(|| now() + time)
}

/// A connected queue pair, as the lender sees it.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) epoch: u32,
    pub(super) pd: ProtectionDomain,
    /// The rights that the queue pair gives its peer.
    pub(super) access: AccessFlags,
}

/// Memory that is open to the peer.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) number: u32,
    pub(super) epoch: u32,
    /// The deadline, or `None` if the lease has no time limit.
    pub(super) until: Option<Instant>,
    pub(super) access: AccessFlags,
    pub(super) opened: Opened,
}

/// Registered memory. The variant determines what happens to it after the lease.
#[derive(Debug)]
pub(super) enum Opened {
    /// Lent by the program, in a region of this domain.
    Lent(SharedRegion, ProtectionDomain, Back<Region>),
    /// A part of memory whose other parts may also be lent.
    Part(CommonRegion, Back<CommonMemory>),
    /// Borrowed by the peer. Freed unless the peer hands it over to this end's program.
    Borrowed(SharedRegion, Counted),
}

/// Returns the memory to the program that lent it.
pub(super) type Back<M> = oneshot::Sender<Result<EndedLease<M>, ReserveError>>;

impl Open {
    /// The length of the memory, in bytes.
    pub(super) fn len(&self) -> usize {
        match &self.opened {
            Opened::Lent(region, ..) | Opened::Borrowed(region, _) => region.len(),
            Opened::Part(part, _) => part.len(),
        }
    }

    /// Returns true if this end's program lent the memory.
    pub(super) const fn is_lent(&self) -> bool {
        !matches!(self.opened, Opened::Borrowed(..))
    }

    pub(super) fn descriptor(&self) -> Descriptor {
        let left = |until: Instant| until.saturating_duration_since(now());
        let remote = match &self.opened {
            Opened::Lent(region, ..) | Opened::Borrowed(region, _) => region.remote(),
            Opened::Part(part, _) => part.remote(),
        };
        Descriptor::new(remote, self.until.map_or(Duration::MAX, left))
    }
}

/// Memory that the peer has handed over to this end's program.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) region: Region,
    /// Keeps the memory counted against the limits until the program receives it.
    _counted: Counted,
}

/// The reason why a lease ends, and whether the borrower hands the memory over to this end's program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Why {
    pub(super) end: LeaseEnd,
    pub(super) lease: u32,
    pub(super) hands_over: bool,
}

/// The memory that is lent on a control connection.
#[derive(Debug, Default)]
pub(super) struct Lender {
    pub(super) current: BTreeMap<u32, Current>,
    leases: BTreeMap<u32, Open>,
    ends: BTreeSet<(Instant, u32)>,
    /// Leases to be closed.
    due: VecDeque<(Open, Why)>,
    /// Leases to be closed by other threads. A thread removes a lease from here when it starts to close it.
    pub(super) closing: BTreeMap<u64, (Open, Why)>,
    newest_closing: u64,
    /// For each connection, the number of handed-over regions that are still being closed.
    handing_over: BTreeMap<u32, usize>,
    /// For each connection, its first epoch, and the memory that was handed over, in order.
    pub(super) given: BTreeMap<u32, (u32, VecDeque<Given>)>,
    newest: u32,
    pub(super) has_ended: bool,
}

impl Lender {
    /// Adds opened memory. Returns the number of its lease.
    ///
    /// # Errors
    /// Returns the memory if its queue pair has ended.
    #[allow(clippy::result_large_err)] // it is the memory
    pub(super) fn insert(&mut self, open: Open) -> Result<u32, Open> {
        if self.has_ended || self.epoch_of(open.number) != Some(open.epoch) {
            return Err(open);
        }
        loop {
            self.newest = self.newest.wrapping_add(1).max(1);
            if !self.leases.contains_key(&self.newest) {
                break;
            }
        }
        self.ends.extend(open.until.map(|until| (until, self.newest)));
        self.leases.insert(self.newest, open);
        Ok(self.newest)
    }

    pub(super) fn epoch_of(&self, number: u32) -> Option<u32> {
        self.current.get(&number).map(|current| current.epoch)
    }

    pub(super) fn lease(&self, number: u32, lease: u32) -> Option<&Open> {
        self.leases.get(&lease).filter(|open| open.number == number)
    }

    /// Removes a lease, for the caller to close it.
    pub(super) fn take(&mut self, lease: u32) -> Option<Open> {
        let open = self.leases.remove(&lease)?;
        if let Some(until) = open.until {
            self.ends.remove(&(until, lease));
        }
        Some(open)
    }

    /// Ends a lease, if it exists.
    pub(super) fn end(&mut self, lease: u32, end: LeaseEnd) {
        let open = self.take(lease);
        self.due.extend(open.map(|open| (open, Why { end, lease, hands_over: false })));
    }

    /// Returns true if a connection has lent memory on a queue pair of this epoch or an earlier one.
    pub(super) fn has_of(&self, number: u32, epoch: u32) -> bool {
        self.leases.values().any(|open| open.number == number && open.epoch <= epoch)
    }

    /// Ends a connection's leases on queue pairs of this epoch and earlier ones.
    pub(super) fn end_of(&mut self, number: u32, epoch: u32) {
        let is_of = |open: &Open| open.number == number && open.epoch <= epoch;
        let ended = self.leases.iter().filter(|(_, open)| is_of(open));
        for lease in ended.map(|(&lease, _)| lease).collect::<Vec<_>>() {
            self.end(lease, LeaseEnd::Disconnected);
        }
    }

    /// Keeps a lease for another thread to close. Returns its number in `closing`.
    ///
    /// # Errors
    /// Returns the lease if all leases have ended, because that thread may never run and the lease would stay open.
    #[allow(clippy::result_large_err)] // it is the memory
    pub(super) fn leave_to_close(&mut self, due: (Open, Why)) -> Result<u64, (Open, Why)> {
        if self.has_ended {
            return Err(due);
        }
        self.newest_closing += 1;
        self.closing.insert(self.newest_closing, due);
        Ok(self.newest_closing)
    }

    /// Records that the closing of handed-over memory begins, or that it is complete.
    pub(super) fn note_handing_over(&mut self, number: u32, begins: bool) {
        let count = self.handing_over.entry(number).or_default();
        debug_assert!(begins || *count > 0, "a close that ends has begun");
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.handing_over.remove(&number);
        }
    }

    pub(super) fn is_handing_over(&self, number: u32) -> bool {
        self.handing_over.contains_key(&number)
    }

    /// Keeps memory that the peer has handed over until the program receives it.
    ///
    /// # Errors
    /// Returns the memory if the connection of this epoch was dropped, because another connection may have its number
    /// now.
    pub(super) fn keep_given(
        &mut self,
        number: u32,
        epoch: u32,
        given: Given,
    ) -> Result<(), Given> {
        match self.given.get_mut(&number).filter(|(first, _)| *first <= epoch) {
            Some((_, kept)) => {
                kept.push_back(given);
                Ok(())
            }
            None => Err(given),
        }
    }

    /// Ends all leases, and returns them to be closed.
    pub(super) fn end_all(&mut self) -> VecDeque<(Open, Why)> {
        self.has_ended = true;
        // Includes the leases left to other threads to close, because those threads may start much later or never.
        self.due.extend(std::mem::take(&mut self.closing).into_values());
        for number in std::mem::take(&mut self.current).into_keys() {
            self.end_of(number, u32::MAX);
        }
        debug_assert!(
            self.leases.is_empty() && self.ends.is_empty(),
            "each lease belongs to a connection"
        );
        std::mem::take(&mut self.due)
    }

    /// Returns the next lease that is due, or the time when the next lease will be due.
    pub(super) fn next_due(&mut self, now: Instant) -> Result<(Open, Why), Option<Instant>> {
        while let Some(&(until, lease)) = self.ends.first().filter(|(until, _)| *until <= now) {
            self.ends.remove(&(until, lease));
            self.end(lease, LeaseEnd::TimeOver);
        }
        self.due.pop_front().ok_or_else(|| self.ends.first().map(|&(until, _)| until))
    }
}

/// Closes the memory. Lent memory goes to the program that lent it. Borrowed memory is freed, or returned to the caller
/// if the peer handed it over.
#[allow(clippy::mem_forget, clippy::result_large_err)] // the memory may be leaked; it is the error
pub(super) fn close((open, why): (Open, Why)) -> Option<Given> {
    // If the provider refuses, this tries again. Memory that is still registered after that is deregistered on drop, or
    // leaked.
    match open.opened {
        Opened::Lent(region, pd, sender) => {
            let closed = region.close().or_else(|(region, _)| region.close());
            let closed = closed.map_err(|(_, error)| error);
            give_back(sender, closed.map(|memory| Region::of(&pd, memory)), why);
            None
        }
        Opened::Part(part, sender) => {
            let closed = part.close().or_else(|(part, _)| part.close());
            give_back(sender, closed.map_err(|(_, error)| error), why);
            None
        }
        Opened::Borrowed(region, counted) => {
            let pd = region.pd().clone();
            match region.close().or_else(|(region, _)| region.close()) {
                Ok(memory) if why.hands_over => {
                    Some(Given { region: Region::of(&pd, memory), _counted: counted })
                }
                Ok(_) => None,
                Err((region, error)) => {
                    tracing::error!(%error, "memory that a peer has borrowed could not be closed, and is never used again");
                    std::mem::forget((region, counted));
                    None
                }
            }
        }
    }
}

/// Closes the memory of a lease that was not made because its queue pair ended in the meantime.
pub(super) fn close_refused(open: Open) {
    let given = close((open, Why { end: LeaseEnd::Disconnected, lease: 0, hands_over: false }));
    debug_assert!(given.is_none(), "the peer does not know this lease");
}

/// Sends the memory, or the error from closing it, to the program that lent it. If the lease's future was dropped, the
/// memory is freed.
fn give_back<M>(sender: Back<M>, closed: Result<M, Error>, why: Why) {
    let (end, is_handed_over) = (why.end, why.hands_over);
    let ended = closed.map(|region| EndedLease { region, end, is_handed_over });
    let ended = ended.map_err(|error| ReserveError::NotRevoked(Box::new(error)));
    contain_panic(|| drop(sender.send(ended)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lease::frame::Ask;
    use crate::lease::limits::LeaseLimits;

    #[test]
    fn a_later_connection_with_the_same_number_gets_no_earlier_memory() {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let (access, time) = (AccessFlags::new().with_remote_read(), Duration::ZERO);
        let ask = Ask { ask: 1, lease: 0, access, length: 1, alignment: 1, time };
        let limits = LeaseLimits::new(access);
        let given = || {
            let counted = limits.count(&Arc::default(), &ask, access).unwrap();
            Given { region: Region::allocate(&pd, 1).unwrap(), _counted: counted }
        };
        let mut lender = Lender::default();
        lender.keep_given(1, 5, given()).unwrap_err();
        lender.given.insert(1, (5, VecDeque::new()));
        lender.keep_given(1, 4, given()).unwrap_err();
        lender.keep_given(1, 5, given()).unwrap();
        lender.keep_given(1, 6, given()).unwrap();
        lender.keep_given(2, 6, given()).unwrap_err();
        assert_eq!(lender.given[&1].1.len(), 2);
    }
}
