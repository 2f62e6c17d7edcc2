//! Two connected queue pairs with memory, for most benches.

use crate::prepared::{Prepared, PreparedReceive};
use test_support::rig::connect::{Knobs, Side, connect_sides};
use test_support::rig::{ALL_ACCESS, Mr, Size};

/// The fields are dropped in this order: the memory before the queue pairs that use it.
pub(crate) struct Link {
    pub(crate) source: Mr,
    pub(crate) sink: Mr,
    pub(crate) a: Side,
    pub(crate) b: Side,
}

impl Link {
    /// Connects two sides with regions of `length` bytes each.
    pub(crate) fn new(length: usize) -> Self {
        Self::on("soft0", length)
    }

    pub(crate) fn on(device: &str, length: usize) -> Self {
        let size = Size::default();
        let (a, b) = (Side::new(device, &size, 256), Side::new(device, &size, 256));
        connect_sides(&a, &b, &Knobs::default());
        // The bytes are not zero, because pages that were never written would all map to the one zero page.
        let source = a.pd.register_filled(vec![1; length], ALL_ACCESS);
        let sink = b.pd.register_filled(vec![2; length], ALL_ACCESS);
        Self { source, sink, a, b }
    }

    /// Notes on the device that the memory stays mapped.
    pub(crate) fn noted(self) -> Self {
        let Self { source, sink, a, b } = self;
        Self { source: source.mapped(), sink: sink.mapped(), a, b }
    }

    /// Returns a write of the first `length` bytes from `a` to `b`.
    pub(crate) fn write(&self, length: usize) -> Prepared {
        Prepared::write(self.source.sge(0, length), self.sink.sge(0, length))
    }

    /// Returns a send of the first `length` bytes of `a`, and the receive request of `b` for it.
    pub(crate) fn send(&self, length: usize) -> (Prepared, PreparedReceive) {
        let send = Prepared::send(self.source.sge(0, length));
        (send, PreparedReceive::new(self.sink.sge(0, length)))
    }
}
