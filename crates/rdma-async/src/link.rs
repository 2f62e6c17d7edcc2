//! The part of a connection to which its operations refer.

mod post;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdma_connect::{CloseReason, Operation, TransportError};
use rdma_mem::ProtectionDomain;
use rdma_qp::QueuePair;

#[cfg(not(loom))]
use crate::control::shared::Member;
use crate::driver::shared::Handle;
#[cfg(not(loom))]
use crate::lease::borrower::Granted;
use crate::ledger::Ledger;
use crate::ledger::entry::ConnectionEntry;
use crate::ledger::post::{PostFailure, words};
use crate::ledger::waiters::Waiters;

/// A connection in its ledger, whether or not it still has an owner.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    ledger: Arc<Ledger>,
    entry: usize,
    serial: u64,
}

impl Seat {
    /// Calls `look` with the connection's entry. Returns `None` if the connection has left the entry.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&ConnectionEntry) -> R) -> Option<R> {
        let mut table = self.ledger.lock();
        let entry = table.at(self.entry);
        (entry.serial == self.serial).then(|| look(entry))
    }

    /// If `is_so` returns true for the entry, stops posts on the connection and lets its send queue drain.
    pub(crate) fn stop_if(
        &self,
        reason: CloseReason,
        is_so: impl FnOnce(&ConnectionEntry) -> bool,
    ) {
        let is_so = |entry: &ConnectionEntry| entry.serial == self.serial && is_so(entry);
        self.ledger.stop_if(self.entry, reason, is_so);
    }

    /// If `is_so` returns true for the entry, destroys the queue pair. Logs an error instead of returning it, because
    /// no caller in this process requested the end.
    pub(crate) fn end_if(&self, reason: CloseReason, is_so: impl FnOnce(&ConnectionEntry) -> bool) {
        let is_so = |entry: &ConnectionEntry| entry.serial == self.serial && is_so(entry);
        if let Err(error) = self.ledger.close_if(self.entry, reason, is_so) {
            tracing::error!(%error, "the queue pair of a connection that has ended could not be destroyed");
        }
    }
}

/// Loom models have no control connections.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) enum Member {}

#[cfg(loom)]
impl Member {
    const fn leave(&self, _: u32, _: Option<CloseReason>) {
        match *self {}
    }
}

/// Loom models have no leases.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) enum Lease {}

#[cfg(loom)]
impl Lease {
    pub(crate) const fn check(&self, _: &ConnectionEntry, _: Operation) -> Result<(), PostFailure> {
        match *self {}
    }

    pub(crate) const fn note_failed(&self) {
        match *self {}
    }

    pub(crate) const fn note_detached(&self) {
        match *self {}
    }
}

/// The state that all clones of a connection share.
pub(crate) struct Inner {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) entry: usize,
    serial: u64,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) pd: ProtectionDomain,
    /// The number of slots of the send queue and of the receive queue.
    pub(crate) depths: [u32; 2],
    /// The control connection, if there is one. On drop, this end leaves it after the queue pair has been destroyed.
    member: OnceLock<Member>,
    /// Keeps the driver running while there are connections.
    pub(crate) driver: Arc<Handle>,
    /// The lease, for operations on borrowed memory.
    pub(crate) lease: Option<Lease>,
}

/// Borrowed memory of the peer, and the connection that uses it.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) granted: Granted,
    of: Arc<Inner>,
}

#[cfg(not(loom))]
impl Lease {
    /// Checks that a request may use the borrowed memory.
    ///
    /// # Errors
    /// The reason why it may not.
    #[cold]
    pub(crate) fn check(
        &self,
        entry: &ConnectionEntry,
        operation: Operation,
    ) -> Result<(), PostFailure> {
        let over = |reason| TransportError::LeaseOver { operation, reason };
        self.granted.check(entry.epoch).map_err(|reason| PostFailure::Failed(over(reason).into()))
    }

    /// Records that a request that used the memory has failed.
    #[cold]
    pub(crate) fn note_failed(&self) {
        self.granted.note_failed();
    }

    /// Records that a request that uses the memory continues after its future was dropped.
    #[cold]
    pub(crate) fn note_detached(&self) {
        self.granted.note_detached();
    }
}

impl Inner {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        qp: QueuePair,
        depths: [u32; 2],
        driver: Arc<Handle>,
    ) -> Self {
        let (pd, waiters) = (qp.pd().clone(), Arc::<Waiters>::default());
        let (entry, serial) = ledger.enter(qp, depths, Arc::clone(&waiters));
        let inner = Self {
            ledger,
            entry,
            serial,
            waiters,
            pd,
            depths,
            member: OnceLock::new(),
            driver,
            lease: None,
        };
        inner.check_driver();
        inner
    }

    /// Returns another handle to this connection, for operations on borrowed memory.
    #[cfg(not(loom))]
    pub(crate) fn leased(self: &Arc<Self>, granted: Granted) -> Self {
        Self {
            ledger: Arc::clone(&self.ledger),
            entry: self.entry,
            serial: self.serial,
            waiters: Arc::clone(&self.waiters),
            pd: self.pd.clone(),
            depths: self.depths,
            member: OnceLock::new(),
            driver: Arc::clone(&self.driver),
            lease: Some(Lease { granted, of: Arc::clone(self) }),
        }
    }

    /// Closes all queue pairs in the ledger if the driver has ended, because it may have ended before this queue pair
    /// entered.
    pub(crate) fn check_driver(&self) {
        if self.driver.is_shut_down() {
            self.ledger.close_all(CloseReason::Destroyed);
        }
    }

    pub(crate) fn seat(&self) -> Seat {
        Seat { ledger: Arc::clone(&self.ledger), entry: self.entry, serial: self.serial }
    }

    /// Stores the control connection.
    pub(crate) fn keep(&self, member: Member) {
        let _ = self.member.set(member);
    }

    pub(crate) fn member(&self) -> Option<&Member> {
        self.member.get()
    }

    /// Returns the connection's time limit for awaited operations without their own limit.
    #[cfg(not(loom))]
    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        let of = self.lease.as_ref().map_or(self, |lease| &lease.of);
        of.member().and_then(|member| member.shared.operation_timeout)
    }

    /// Loom models have no options.
    #[cfg(loom)]
    pub(crate) const fn operation_timeout(&self) -> Option<Duration> {
        None
    }

    fn is_of_this_process(&self) -> bool {
        self.pd.context().check_process().is_ok()
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair.
    pub(crate) fn close(&self, reason: CloseReason) -> Result<(), rdma_qp::Error> {
        self.ledger.close(self.entry, reason)
    }

    /// Registers words for atomic operations, unless the connection already has some.
    ///
    /// # Errors
    /// If the words cannot be registered.
    #[cold]
    pub(crate) fn prepare_words(&self) -> Result<(), TransportError> {
        if self.ledger.lock().at(self.entry).has_words() {
            return Ok(());
        }
        let words = words(&self.pd, self.depths.iter().sum())?;
        self.ledger.lock().at(self.entry).give_words(words);
        Ok(())
    }

    /// Calls `look` with the connection's entry.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut ConnectionEntry) -> R) -> R {
        look(self.ledger.lock().at(self.entry))
    }

    /// Waits until `find` returns a value for the connection's entry. Calls it whenever the connection is closed or
    /// drained.
    #[cfg(not(loom))]
    pub(crate) async fn until<R>(&self, find: impl Fn(&mut ConnectionEntry) -> Option<R>) -> R {
        crate::sync::until(self.waiters.ended(), || self.look(&find)).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.lease.is_some() {
            return; // the connection belongs to `lease.of`
        }
        // A forked child owns none of this, and the thread that holds a lock may not exist there.
        if self.is_of_this_process() {
            let (epoch, closed) = self.look(|entry| (entry.epoch, entry.closed()));
            self.ledger.leave(self.entry);
            if let Some(member) = self.member.get() {
                member.leave(epoch, closed);
            }
        } else {
            #[allow(clippy::mem_forget)] // the runtime belongs to the parent
            std::mem::forget(self.member.take());
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// The connection of an operation, borrowed by default so that an operation changes no reference count.
#[derive(Clone, Debug)]
pub(crate) enum Link<'c> {
    Borrowed(&'c Inner),
    Owned(Arc<Inner>),
}

impl Deref for Link<'_> {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        match self {
            Self::Borrowed(inner) => inner,
            Self::Owned(inner) => inner,
        }
    }
}

impl Link<'_> {
    #[track_caller]
    pub(crate) fn into_owned(self, owner: &Arc<Inner>) -> Link<'static> {
        match self {
            Self::Owned(inner) => Link::Owned(inner),
            Self::Borrowed(inner) => {
                assert!(
                    std::ptr::eq(inner, &raw const **owner),
                    "the operation belongs to another connection"
                );
                Link::Owned(Arc::clone(owner))
            }
        }
    }
}
