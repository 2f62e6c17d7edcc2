//! Registered words for the results of atomic operations whose callers provide no memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use rdma_connect::TransportError;
use rdma_mem::{AccessFlags, ScatterList, SharedElement, SharedRegion};

use super::Ledger;
use super::queues::index;

/// One registered word per slot. Blocking calls use the word of the dead slot. The words are registered on first use.
#[derive(Debug, Default)]
pub(super) struct Words(OnceLock<Arc<SharedRegion>>);

/// The word of a blocking call, which posts no other request. It is the dead slot's word, the first one.
#[derive(Debug)]
pub(crate) struct CallWord(Arc<SharedRegion>);

/// The size of each word in bytes.
const WORD: usize = size_of::<u64>();

/// One of the words. Only the request in its slot, or the handle that holds the slot, uses the word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'l> {
    words: &'l SharedRegion,
    offset: usize,
}

impl Ledger {
    /// Returns the words of all slots.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be registered.
    pub(crate) fn words(&self) -> Result<&Arc<SharedRegion>, TransportError> {
        if let Some(words) = self.words.0.get() {
            return Ok(words);
        }
        let length = self.queues.slots().len() * WORD;
        let words =
            self.pd.allocate_shared_region(length, AccessFlags::new().with_local_write())?;
        Ok(self.words.0.get_or_init(|| Arc::new(words)))
    }

    /// Returns the word of a blocking call, which uses the ledger exclusively.
    ///
    /// # Errors
    /// Same errors as [`words`](Self::words).
    pub(crate) fn call_word(&self) -> Result<CallWord, TransportError> {
        self.words().map(Arc::clone).map(CallWord)
    }
}

impl CallWord {
    fn word(&self) -> Word<'_> {
        Word { words: &self.0, offset: 0 }
    }

    /// Returns the scatter list for the previous value of the peer's word.
    pub(crate) fn list(&self) -> ScatterList<'_, 1> {
        ScatterList::from([self.word().element()])
    }

    /// Returns the previous value of the peer's word, after the operation has completed.
    pub(crate) fn value(&self) -> u64 {
        self.word().value()
    }
}

#[allow(clippy::expect_used)] // slot indices are below the number of words
impl<'l> Word<'l> {
    /// Returns the word of the slot with this WR ID.
    pub(crate) fn of_slot(words: &'l SharedRegion, id: u64) -> Self {
        Self { words, offset: index(id) * WORD }
    }

    pub(crate) fn element(self) -> SharedElement<'l> {
        self.words.element(self.offset..self.offset + WORD).expect("a word for each slot")
    }

    /// Returns the previous value of the peer's word, after the operation has completed.
    pub(crate) fn value(self) -> u64 {
        self.words.atomic_u64(self.offset).expect("a word for each slot").load(Ordering::Acquire)
    }
}
