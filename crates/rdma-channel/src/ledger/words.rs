//! The words into which atomic operations put what the peer's word was, for callers who have no memory of their own.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use rdma_connect::TransportError;
use rdma_mem::{AccessFlags, ScatterList, SharedElement, SharedRegion};

use super::Ledger;
use super::queues::index;

/// A registered word for each slot, and the dead slot's for calls. Registered when the first one is needed.
#[derive(Debug, Default)]
pub(super) struct Words(OnceLock<Arc<SharedRegion>>);

/// The word of a call that has posted nothing else: the dead slot's, which is the first.
#[derive(Debug)]
pub(crate) struct WordOfCall(Arc<SharedRegion>);

/// How many bytes a word has.
const WORD: usize = size_of::<u64>();

/// One of the words. Whose request is in its slot, or whose handle holds the slot, has the word alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'l> {
    words: &'l SharedRegion,
    offset: usize,
}

impl Ledger {
    /// The words of all slots.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub(crate) fn words(&self) -> Result<&Arc<SharedRegion>, TransportError> {
        if let Some(words) = self.words.0.get() {
            return Ok(words);
        }
        let length = self.queues.slots().len() * WORD;
        let words =
            self.pd.allocate_shared_region(length, AccessFlags::new().with_local_write())?;
        Ok(self.words.0.get_or_init(|| Arc::new(words)))
    }

    /// The word of a blocking call, which has the ledger for itself.
    ///
    /// # Errors
    /// Those of [`words`](Self::words).
    pub(crate) fn word_of_call(&self) -> Result<WordOfCall, TransportError> {
        self.words().map(Arc::clone).map(WordOfCall)
    }
}

impl WordOfCall {
    fn word(&self) -> Word<'_> {
        Word { words: &self.0, offset: 0 }
    }

    /// Where the operation puts what the peer's word was.
    pub(crate) fn list(&self) -> ScatterList<'_, 1> {
        ScatterList::from([self.word().element()])
    }

    /// What the operation has put there.
    pub(crate) fn value(&self) -> u64 {
        self.word().value()
    }
}

#[allow(clippy::expect_used)] // a slot's index is below their number
impl<'l> Word<'l> {
    /// The word of the slot of this WR ID.
    pub(crate) fn of_slot(words: &'l SharedRegion, id: u64) -> Self {
        Self { words, offset: index(id) * WORD }
    }

    pub(crate) fn element(self) -> SharedElement<'l> {
        self.words.element(self.offset..self.offset + WORD).expect("a word for each slot")
    }

    /// What the operation has put there.
    pub(crate) fn value(self) -> u64 {
        self.words.atomic_u64(self.offset).expect("a word for each slot").load(Ordering::Acquire)
    }
}
