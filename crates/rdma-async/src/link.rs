//! A connection, as its operations hold it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use rdma_channel::{CloseReason, TransportError};
use rdma_mem::ProtectionDomain;
use rdma_qp::QueuePair;

use crate::control::shared::Member;
use crate::driver::shared::Handle;
use crate::ledger::Ledger;
use crate::ledger::place::{Rooms, words};
use crate::ledger::slots::Side;

/// What all clones of a connection have.
pub(crate) struct Inner {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) place: usize,
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) pd: ProtectionDomain,
    /// How many slots it has.
    pub(crate) depth: u32,
    /// The control connection, if there is one. Left behind the queue pair.
    member: OnceLock<Member>,
    /// The driver goes on as long as there are connections.
    pub(crate) driver: Arc<Handle>,
}

impl Inner {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        qp: QueuePair,
        depth: [u32; 2],
        driver: Arc<Handle>,
    ) -> Self {
        let (pd, rooms) = (qp.pd().clone(), Arc::<Rooms>::default());
        let place = ledger.enter(qp, depth, Arc::clone(&rooms));
        let depth = depth[0] + depth[1];
        let inner = Self { ledger, place, rooms, pd, depth, member: OnceLock::new(), driver };
        inner.check_driver();
        inner
    }

    /// Whoever ended the driver may have been here before the queue pair.
    pub(crate) fn check_driver(&self) {
        if self.driver.is_over() {
            self.ledger.close_all(CloseReason::Destroyed);
        }
    }

    /// Keeps the control connection.
    pub(crate) fn keep(&self, member: Member) {
        let _ = self.member.set(member);
    }

    pub(crate) fn member(&self) -> Option<&Member> {
        self.member.get()
    }

    fn is_of_this_process(&self) -> bool {
        self.pd.context().check_process().is_ok()
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    /// If the provider refuses that.
    pub(crate) fn close(&self, reason: CloseReason) -> Result<(), rdma_qp::Error> {
        self.ledger.close(self.place, reason)
    }

    /// Destroys the queue pair, which nobody here has asked for.
    pub(crate) fn end(&self, reason: CloseReason) {
        if self.is_of_this_process()
            && let Err(error) = self.close(reason)
        {
            tracing::error!(%error, "the queue pair of a connection that has ended could not be destroyed");
        }
    }

    /// Whether it takes no more operations, and is not about to let those end that were sent.
    pub(crate) fn has_ended(&self) -> bool {
        let mut table = self.ledger.lock();
        let place = table.at(self.place);
        place.closed().is_some() && !place.is_draining()
    }

    /// Whether it takes no more operations, and those that were sent have ended.
    pub(crate) fn is_drained(&self) -> bool {
        let mut table = self.ledger.lock();
        let place = table.at(self.place);
        place.is_drained() || place.is_gone()
    }

    /// Ready when it [is drained](Self::is_drained), after it was [stopped](Ledger::stop).
    pub(crate) async fn until_drained(&self) {
        self.until(Self::is_drained).await;
    }

    /// Ready when the queue pair was destroyed, which somebody is about to do.
    pub(crate) async fn until_gone(&self) {
        self.until(|inner| inner.ledger.lock().at(inner.place).is_gone()).await;
    }

    /// Ready when that is so. Looks when the connection is closed, or drained.
    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let ends = self.rooms.of(Side::Send);
        let ended = ends.notified();
        tokio::pin!(ended);
        loop {
            // Before the look, so that none is missed.
            ended.as_mut().enable();
            if is_so(self) {
                return;
            }
            ended.as_mut().await;
            ended.set(ends.notified());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child has none of it, and nobody may be there to unlock it.
        if self.is_of_this_process() {
            self.ledger.leave(self.place);
            self.member.get().into_iter().for_each(Member::leave);
        } else {
            #[allow(clippy::mem_forget)] // the runtime is the parent's
            std::mem::forget(self.member.take());
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Borrowed by default, so that an operation costs no reference count.
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
                    "the operation is of another connection"
                );
                Link::Owned(Arc::clone(owner))
            }
        }
    }

    /// Words for atomic operations, if the connection has none yet.
    ///
    /// # Errors
    /// If they cannot be registered.
    #[cold]
    pub(crate) fn prepare_words(&self) -> Result<(), TransportError> {
        if self.ledger.lock().at(self.place).has_words() {
            return Ok(());
        }
        let words = words(&self.pd, self.depth)?;
        self.ledger.lock().at(self.place).give_words(words);
        Ok(())
    }
}
