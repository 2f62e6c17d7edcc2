//! Atomic operations that return a number and do not use the caller's memory.

use std::fmt;
use std::time::Duration;

use rdma_connect::{Operation, TransportError, WorkId};
use rdma_mem::{RemoteMemoryRegion, ScatterList};
use rdma_qp::{AtomicResult, AtomicWorkRequest};

use super::peer::ScopedPeer;
use super::pending_work::PendingWork;
use crate::ledger::SlotWait;
use crate::ledger::words::Word;

/// The handle of an atomic operation in flight. It returns the previous value of the peer's word.
///
/// The channel stores the previous value in memory that belongs to the operation's slot. Like other handles, this one
/// occupies its slot until it is dropped. Dropping it has no other effect.
pub struct PendingWord<'scope> {
    work: PendingWork<'scope>,
    word: Word<'scope>,
}

/// Formats the kind of the operation and its ID.
impl fmt::Debug for PendingWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingWord({}, {})", self.work.operation(), self.id())
    }
}

impl PendingWord<'_> {
    /// The previous value of the peer's word, if the operation has completed. Does not wait, and can be called again.
    #[inline]
    pub fn poll(&self) -> Option<Result<u64, TransportError>> {
        self.work.poll().map(|ended| ended.map(|_| self.word.value()))
    }

    /// Waits for the previous value of the peer's word, for at most `timeout`. [`Duration::MAX`] means no limit. Can be
    /// called again.
    ///
    /// # Errors
    /// Same errors as [`PendingWork::wait`].
    #[inline]
    pub fn wait(&self, timeout: Duration) -> Result<u64, TransportError> {
        self.work.wait(timeout).map(|_| self.word.value())
    }

    /// The ID that errors use for this operation.
    #[doc(alias = "wr_id")]
    pub fn id(&self) -> WorkId {
        self.work.id()
    }
}

impl<'scope> ScopedPeer<'scope> {
    /// Adds `add` to the peer's word, wrapping on overflow. The handle returns the previous value. Waits for a free
    /// slot, like [`post_atomic`](Self::post_atomic).
    ///
    /// The first such operation of a channel registers 8 bytes for each request that its queues can hold. To use the
    /// caller's memory instead, call [`post_atomic`](Self::post_atomic).
    ///
    /// # Errors
    /// Same errors as [`post_atomic`](Self::post_atomic), and the provider's error if the memory cannot be registered.
    ///
    /// # Examples
    /// Four numbers from a counter in the peer's memory, requested at the same time:
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    /// # use rdma_mem::AccessFlags;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let access = AccessFlags::new().with_local_write().with_remote_atomic();
    /// # let channel = pd.create_channel().access(access).build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// # let counter = pd.allocate_shared_region(8, access)?;
    /// let counter = counter.remote();
    /// let drawn = channel.scope(|s| {
    ///     let drawn = [(); 4].map(|()| s.fetch_add(counter, 1));
    ///     let mut numbers = Vec::new();
    ///     for number in drawn {
    ///         numbers.push(number?.wait(Duration::from_secs(1))?);
    ///     }
    ///     Ok::<_, TransportError>(numbers)
    /// });
    /// assert_eq!(drawn.unwrap(), [0, 1, 2, 3]);
    /// # Ok::<(), TransportError>(())
    /// ```
    pub fn fetch_add(
        &self,
        remote: impl Into<RemoteMemoryRegion>,
        add: u64,
    ) -> Result<PendingWord<'scope>, TransportError> {
        let remote = remote.into();
        self.post_of_word(|word| AtomicWorkRequest::fetch_and_add(word, remote, add))
    }

    /// Replaces the peer's word with `swap` if it equals `compare`. The handle returns the previous value. Uses memory
    /// of the channel, like [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// Same errors as [`fetch_add`](Self::fetch_add).
    pub fn compare_and_swap(
        &self,
        remote: impl Into<RemoteMemoryRegion>,
        compare: u64,
        swap: u64,
    ) -> Result<PendingWord<'scope>, TransportError> {
        let remote = remote.into();
        self.post_of_word(|word| AtomicWorkRequest::compare_and_swap(word, remote, compare, swap))
    }

    /// Posts the request that the closure creates. The closure runs no code of the caller, so the slot found here is
    /// still the next one when the request is posted.
    fn post_of_word(
        &self,
        request: impl for<'w> FnOnce(AtomicResult<'w, 'scope>) -> AtomicWorkRequest<'w, 'scope>,
    ) -> Result<PendingWord<'scope>, TransportError> {
        let (ledger, connection) = (self.ledger(), self.connection());
        let words = ledger.words()?;
        let wait = SlotWait::Usual;
        let (slot, _) =
            ledger.wait_for_slot(connection, &connection.send, Operation::Atomic, wait)?;
        let word = Word::of_slot(words, slot.id());
        let work = self.post(request((&mut ScatterList::from([word.element()])).into()))?;
        debug_assert_eq!(work.id(), WorkId::from_wr_id(slot.id()), "the slot that was found free");
        Ok(PendingWord { work, word })
    }
}
