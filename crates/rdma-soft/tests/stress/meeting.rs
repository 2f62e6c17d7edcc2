//! The state that the two parties of a pair share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use crate::memory::Memory;
use test_support::rig::connect::Endpoint;

/// Memory that the peer writes and reads.
#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) memory: Arc<Memory>,
    pub(crate) key: u32,
}

/// Actions of a party that may make requests fail, its own or the peer's.
pub(crate) mod deed {
    pub(crate) const DEREGISTERED_SINK: u32 = 1;
    pub(crate) const REPLACED_RECEIVE_MEMORY: u32 = 2;
    pub(crate) const REPLACED_LOCAL_MEMORY: u32 = 4;
    /// Ended a connection: by the error state, a reset or the destruction of a queue pair.
    pub(crate) const ENDED: u32 = 8;
    pub(crate) const IMPATIENT: u32 = 16;
}

/// The numbers of messages that a queue pair sent and received successfully; `None` if requests
/// were dropped.
pub(crate) type Tally = Option<(u64, u64)>;

#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) endpoints: Mutex<Vec<Endpoint>>,
    pub(crate) sinks: Mutex<Vec<Sink>>,
    pub(crate) tallies: Mutex<Vec<Tally>>,
    deeds: AtomicU32,
    finished: AtomicU32,
}

impl Desk {
    /// Records an action before it is performed.
    pub(crate) fn did(&self, deed: u32) {
        self.deeds.fetch_or(deed, Ordering::SeqCst);
    }

    pub(crate) fn deeds(&self) -> u32 {
        self.deeds.load(Ordering::SeqCst)
    }

    pub(crate) fn finish(&self) {
        self.finished.store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst) != 0
    }
}

/// One round of two parties.
pub(crate) struct Meeting {
    pub(crate) desks: [Desk; 2],
    barrier: Barrier,
}

impl Meeting {
    pub(crate) fn new() -> Self {
        Self { desks: Default::default(), barrier: Barrier::new(2) }
    }

    pub(crate) fn wait(&self) {
        self.barrier.wait();
    }
}
