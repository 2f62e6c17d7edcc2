//! The operations that devices may lack.

use rdma_mem::{AtomicCapability, Context, DeviceAttributes};
use rdma_types::TransportType;

/// The operations that a device may lack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operations {
    pub(crate) has_atomics: bool,
    /// Whether the device speaks iWARP, which has no immediate data, and whose reads have one element (RFC 5040, section 3).
    pub(crate) is_iwarp: bool,
}

impl Operations {
    /// Returns the operations of a device. If its attributes are unknown, the provider itself has to refuse atomics.
    pub(crate) fn of(context: &Context, device: Option<&DeviceAttributes>) -> Self {
        Self { has_atomics: device.is_none_or(has_atomics), is_iwarp: is_iwarp(context) }
    }

    /// Returns true if the device lacks none.
    pub(crate) const fn are_all(self) -> bool {
        self.has_atomics && !self.is_iwarp
    }
}

/// Returns true if the device supports atomic operations.
pub(crate) fn has_atomics(device: &DeviceAttributes) -> bool {
    device.atomic_capability != AtomicCapability::NONE
}

/// Returns true if the device speaks iWARP.
pub(crate) fn is_iwarp(context: &Context) -> bool {
    context.device().transport_type() == TransportType::IWARP
}
