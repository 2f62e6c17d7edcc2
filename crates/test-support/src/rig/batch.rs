//! A connection on which one side posts with function calls.

use super::connect::{Knobs, Side, connect_sides};
use super::extended::operations;
use super::post::Wr;
use super::{ALL_ACCESS, LOCAL_WRITE, Mr, Size};

/// Two connected queue pairs with memory. A posts with function calls. A's bytes count up from 0,
/// and B's are 0.
pub struct Scene {
    pub at_a: Mr,
    pub at_b: Mr,
    pub a: Side,
    pub b: Side,
}

impl Scene {
    pub fn new(device: &str) -> Self {
        Self::with(device, &Size::default(), operations())
    }

    pub fn with(device: &str, size: &Size, operations: u64) -> Self {
        let (a, b) = (Side::extended(device, size, operations), Side::new(device, size, 256));
        connect_sides(&a, &b, &Knobs::default());
        let at_a = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
        let at_b = b.pd.register_filled(vec![0; 64], ALL_ACCESS);
        Self { at_a, at_b, a, b }
    }

    /// Returns a write of eight bytes from offset `place` in A's memory to the same offset in B's.
    pub fn write(&self, wr_id: u64, place: usize) -> Wr {
        Wr::write(wr_id, &[self.at_a.sge(place, 8)], &self.at_b, place)
    }

    #[track_caller]
    pub fn expect_successes(&self, wr_ids: std::ops::Range<u64>) {
        for wr_id in wr_ids {
            self.a.send_cq.expect_success(wr_id);
        }
    }
}
