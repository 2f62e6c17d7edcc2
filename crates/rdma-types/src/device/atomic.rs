//! The scope of a device's atomic operations.

use crate::macros::open_enum;

open_enum! {
    /// The scope of a device's atomic operations (`enum ibv_atomic_cap`). IBTA vol 1, section
    /// 11.2.1.2.
    #[doc(alias = "ibv_atomic_cap")]
    AtomicCapability(u32), "atomic capability" {
        /// The device has no atomic operations.
        NONE = 0, "none";
        /// Atomic with respect to other operations of this device, but not to operations of the
        /// processor.
        DEVICE = 1, "within the device";
        /// Atomic with respect to all other atomic operations in the machine.
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
