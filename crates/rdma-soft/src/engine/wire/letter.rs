//! Packets in transit, in the form that every link carries.

use std::sync::{Arc, Weak};

use rdma_proto::Burst;
use rdma_types::Psn;

use crate::address::{Group, Path};
use crate::engine::completion::work_completion::Source;
use crate::engine::wire::grant::{Version, Want};
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::word::WordKey;
use crate::memory::copy::Reach;

/// The maximum payload of a burst in bytes: 16 packets of the largest MTU, or 4 in models.
pub(crate) const BURST_BYTES: usize = if cfg!(loom) { 16 << 10 } else { 64 << 10 };

/// A burst in transit.
#[derive(Debug)]
pub(crate) struct Letter {
    /// The path from its sender to its receiver.
    pub(crate) path: Path,
    pub(crate) burst: Burst,
    /// The link's information about a datagram, in addition to its headers.
    pub(crate) datagram: Option<Datagram>,
    /// Whether this is a void refusal: an earlier refusal no longer applies, because a receive request was posted
    /// since.
    pub(crate) is_void: bool,
    /// Whether this letter arrived earlier, and was [kept](Self::keep).
    pub(crate) was_kept: bool,
    /// The number of bytes of the same message before the payload, which the sender has written to this process's memory
    /// itself. Not 0 only for the last packet of a WRITE with immediate data, from another process.
    pub(crate) placed: u32,
    /// The buffer with the payload. If the payload is [in a ring](Self::in_ring), the buffer only represents it.
    payload: Box<[u8]>,
    /// The place of the payload, if it is in the ring between two processes.
    pub(crate) in_ring: Option<InRing>,
    /// A number that increases with each letter that arrives at the inbox.
    pub(crate) number: u64,
    /// Whether another process or another host sent this letter.
    pub(crate) from_outside: bool,
    /// For requests to another process, the word that shows how many of them are executed.
    pub(crate) word: Option<WordKey>,
    /// The memory that contains the word, if the letter came from another process.
    pub(crate) words: Option<Arc<dyn ExecutedWords>>,
}

/// A copy of a letter from another process. It does not keep the memory of that process mapped.
#[derive(Debug)]
pub(crate) struct Kept {
    letter: Box<Letter>,
    words: Weak<dyn ExecutedWords>,
}

impl Kept {
    /// Returns the letter, if its sender still retries without limit.
    pub(crate) fn into_letter(mut self) -> Option<Box<Letter>> {
        self.letter.words = Some(self.words.upgrade()?);
        self.letter.is_patient().then_some(self.letter)
    }
}

/// The memory in which another process checks how many of its requests are executed.
pub(crate) trait ExecutedWords: Send + Sync + std::fmt::Debug {
    /// Records that all packets before `expected` have been executed, for the connection with this word.
    fn store(&self, key: WordKey, expected: Psn);

    /// Returns true if the requester with this word retries without limit while the receiver is not ready.
    fn is_patient(&self, key: WordKey) -> bool;

    /// Lends a version word for the grants of a queue pair. Returns `None` if the process gets no grants, or if no word
    /// is left.
    fn lend_version(&self) -> Option<Version> {
        None
    }

    /// Makes the grants with a version invalid, and takes the version word back.
    fn take_version(&self, index: u32) {
        let _ = index;
    }

    /// Gives the process a grant, soon.
    fn grant(&self, want: Want) {
        let _ = want;
    }

    /// Returns true if the process was given the file of the region with this key.
    fn has_file(&self, key: u32) -> bool {
        let _ = key;
        false
    }

    /// Returns the number of the visit in which the connection with this word is, if any. Everything that was revoked
    /// before the call was revoked before the visit, or the visit is found. Returns `None` if the grants have
    /// [ended](Self::end_grants), because the process is known to stay in visits.
    fn visit(&self, index: usize) -> Option<u32> {
        let _ = index;
        None
    }

    /// Makes all grants invalid, and gives the process no others.
    fn end_grants(&self) {}

    /// Makes the process check its words, if it does not poll them itself. The caller holds no lock except the receive
    /// side of an inbox.
    fn announce(&self);
}

/// The link's information about a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) source: Source,
    /// The route header of the datagram's packet, if it has one.
    pub(crate) header: Option<[u8; 40]>,
    /// The multicast group that the datagram is for, if any.
    pub(crate) group: Option<Group>,
}

impl Letter {
    pub(crate) fn new(
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        payload: Box<[u8]>,
    ) -> Self {
        debug_assert!(burst.length as usize <= payload.len());
        let [from_outside, is_void, was_kept] = [false; 3];
        let (number, placed, in_ring, word, words) = (0, 0, None, None, None);
        Self {
            path,
            burst,
            datagram,
            is_void,
            was_kept,
            placed,
            payload,
            in_ring,
            number,
            from_outside,
            word,
            words,
        }
    }

    /// Creates a void refusal: an RNR NAK that no longer applies, because a receive request for its packet was posted
    /// since. Only links between processes carry it.
    pub(crate) fn void(path: Path, refusal: Burst, payload: Box<[u8]>) -> Self {
        Self { is_void: true, ..Self::new(path, refusal, None, payload) }
    }

    /// Creates a letter that another process or another host sent.
    #[cfg(not(loom))]
    pub(crate) fn from_outside(
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        payload: Box<[u8]>,
    ) -> Self {
        Self { from_outside: true, ..Self::new(path, burst, datagram, payload) }
    }

    /// Adds the word that shows how many of the connection's requests are executed.
    pub(crate) fn with_word(self, word: Option<WordKey>) -> Self {
        Self { word, ..self }
    }

    /// Records that all packets before `expected` have been executed, for this letter's connection. Returns true if the
    /// sender of the letter can see this.
    pub(crate) fn store(&self, expected: Psn) -> bool {
        let (Some(words), Some(word)) = (&self.words, self.word) else { return false };
        words.store(word, expected);
        true
    }

    /// Returns true if the sender is in another process and retries without limit while the receiver is not ready.
    pub(crate) fn is_patient(&self) -> bool {
        self.words.as_ref().zip(self.word).is_some_and(|(words, word)| words.is_patient(word))
    }

    /// Returns a copy, if the sender is in another process and retries without limit while the receiver is not ready.
    pub(crate) fn keep(&self) -> Option<Kept> {
        let words = Arc::downgrade(self.words.as_ref()?);
        let letter = || {
            let (was_kept, payload) = (true, self.copy_payload());
            Box::new(Self { was_kept, payload, in_ring: None, words: None, ..*self })
        };
        self.is_patient().then(|| Kept { letter: letter(), words })
    }

    fn copy_payload(&self) -> Box<[u8]> {
        let mut copy: Box<[u8]> = self.payload().into();
        if let Some(memory) = self.in_ring.and_then(|in_ring| in_ring.memory(self.payload())) {
            let _ = Reach::Mapped.collect_bytes(&memory, 0, &mut copy);
        }
        copy
    }

    pub(crate) fn into_buffer(self) -> Box<[u8]> {
        self.payload
    }

    /// Moves the payload to a buffer of exactly its size. Returns the letter, and the original buffer.
    #[cfg(not(loom))]
    pub(crate) fn of_own_size(self) -> (Self, Box<[u8]>) {
        let payload = self.payload().into();
        let Self { payload: buffer, .. } = self;
        (Self { payload, ..self }, buffer)
    }

    /// Moves the payload to `buffer`.
    pub(crate) fn in_buffer(self, mut buffer: Box<[u8]>) -> Self {
        let payload = self.payload();
        buffer[..payload.len()].copy_from_slice(payload);
        Self { payload: buffer, ..self }
    }

    pub(crate) fn is_for_many(&self) -> bool {
        self.datagram.is_some_and(|datagram| datagram.group.is_some())
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..self.burst.length as usize]
    }
}
