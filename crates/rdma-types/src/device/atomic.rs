//! What atomics of a device are atomic to.

use crate::macros::open_enum;

open_enum! {
    /// What a device's atomic operations are atomic to (`enum ibv_atomic_cap`). IBTA vol 1, section
    /// 11.2.1.2.
    #[doc(alias = "ibv_atomic_cap")]
    AtomicCapability(u32), "atomic capability" {
        /// There are none.
        NONE = 0, "none";
        /// To each other, as far as this device executes them, and not to those of the processor.
        DEVICE = 1, "within the device";
        /// To everything else in the machine that is atomic.
        GLOBAL = 2, "within the machine";
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn values_are_those_of_verbs_h() {
        let known = [AtomicCapability::NONE, AtomicCapability::DEVICE, AtomicCapability::GLOBAL];
        assert_eq!(known.map(AtomicCapability::raw), [0, 1, 2]);
        assert_eq!(format!("{}", AtomicCapability::from(3)), "unknown atomic capability 3");
    }
}
