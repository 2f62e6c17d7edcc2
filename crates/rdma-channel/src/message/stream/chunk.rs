//! Bytes of a stream in the memory where they arrived.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use rdma_connect::messaging::{Arrived, StreamState, chunk_bytes};

use crate::message::session::{Session, State};

/// Bytes of a stream in the memory where they arrived, returned by [`Stream::read_chunk`](crate::message::Stream::read_chunk).
///
/// The memory is used again when the chunk is dropped. Chunks may be dropped in any order, also after the stream. A
/// program that keeps all chunks of a stream stops its peer, which has no memory left to send into.
pub struct Chunk {
    session: Arc<Session<StreamState>>,
    /// `None` while the chunk is dropped.
    arrived: Option<Arrived>,
    /// The number of bytes that were read before.
    start: usize,
}

impl Chunk {
    pub(super) const fn new(
        session: Arc<Session<StreamState>>,
        arrived: Arrived,
        start: usize,
    ) -> Self {
        Self { session, arrived: Some(arrived), start }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.arrived.as_ref().map_or(&[][..], chunk_bytes);
        bytes.get(self.start..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Some(arrived) = self.arrived.take() else { return };
        release(&self.session, arrived);
    }
}

/// Returns the memory of a chunk to its slot.
pub(super) fn release(session: &Session<StreamState>, arrived: Arrived) {
    if session.is_of_this_process() {
        session.with(|State { protocol, requests, .. }| protocol.release(arrived, requests));
    } else {
        // A forked child owns none of this.
        let _ = ManuallyDrop::new(arrived);
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}
