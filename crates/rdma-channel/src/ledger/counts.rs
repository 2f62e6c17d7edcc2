//! Counts for the counters of a ledger's connections.

use std::cell::Cell;

use rdma_connect::ConnectionCounters;

/// Counts since the ledger was created. They have 64 bits, so they never overflow in practice.
#[derive(Debug, Default)]
pub(super) struct Counts {
    failed: Cell<u64>,
    slot_waits: Cell<u64>,
    /// Markers: requests that the ledger itself posts after unsignaled requests to detect their completion.
    markers: Cell<u64>,
}

impl Counts {
    pub(super) fn fail(&self) {
        self.failed.set(self.failed.get() + 1);
    }

    pub(super) fn note_slot_wait(&self) {
        self.slot_waits.set(self.slot_waits.get() + 1);
    }

    pub(super) fn note_marker(&self) {
        self.markers.set(self.markers.get() + 1);
    }

    /// Returns the counters. `uses` is how often the ledger has used its slots, and `outstanding` is the number of the
    /// callers' requests in flight.
    pub(super) fn snapshot(&self, uses: u64, outstanding: u64) -> ConnectionCounters {
        let mut counters = ConnectionCounters::default();
        counters.posted = uses - self.markers.get();
        (counters.failed, counters.slot_waits) = (self.failed.get(), self.slot_waits.get());
        counters.snapshot(outstanding)
    }
}
