//! A connection, as its operations hold it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_channel::{CloseReason, PeerAddress, TransportError};
use rdma_mem::ProtectionDomain;
use rdma_qp::{Qpn, QueuePair};

use crate::control::watch::Watch;
use crate::driver::shared::Handle;
use crate::ledger::Ledger;
use crate::ledger::place::{Rooms, words};

/// What all clones of a connection have.
pub(crate) struct Inner {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) place: usize,
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) pd: ProtectionDomain,
    /// How many slots it has.
    pub(crate) depth: u32,
    pub(crate) qpn: Qpn,
    pub(crate) peer: Option<PeerAddress>,
    /// The control connection, if there is one. Closed behind the queue pair.
    watch: Mutex<Option<Watch>>,
    /// The driver goes on as long as there are connections.
    _driver: Arc<Handle>,
}

impl Inner {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        qp: QueuePair,
        depth: [u32; 2],
        driver: Arc<Handle>,
    ) -> Self {
        let (pd, qpn) = (qp.pd().clone(), qp.qpn());
        let (peer, rooms) = (qp.peer().map(PeerAddress::from), Arc::<Rooms>::default());
        let place = ledger.enter(qp, depth, Arc::clone(&rooms));
        if driver.is_over() {
            // Whoever ended it may have been here before.
            ledger.close_all(CloseReason::Destroyed);
        }
        let depth = depth[0] + depth[1];
        let watch = Mutex::default();
        Self { ledger, place, rooms, pd, depth, qpn, peer, watch, _driver: driver }
    }

    /// Keeps the control connection.
    pub(crate) fn keep(&self, watch: Watch) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child has none of it, and nobody may be there to unlock it.
        if self.pd.context().check_process().is_ok() {
            self.ledger.leave(self.place);
        } else {
            #[allow(clippy::mem_forget)] // the runtime is the parent's
            std::mem::forget(std::mem::take(&mut self.watch));
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("qpn", &self.qpn).finish_non_exhaustive()
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
