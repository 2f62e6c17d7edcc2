//! The regions that a memory window can be bound to.

use std::sync::Arc;

use rdma_sys::ibv_mr;
use rdma_types::AccessFlags;

use crate::device::protection_domain::ProtectionDomain;
use crate::region::owned::OwnedRegion;
use crate::region::pool::buffer::Buffer;
use crate::region::registration::Registration;
use crate::region::shared::SharedRegion;
use crate::region::unowned::MemoryRegion;

/// A region that a [`MemoryWindow`](crate::MemoryWindow) has, or what keeps one alive for it.
///
/// | | what others can do with the bytes meanwhile |
/// |---|---|
/// | `&SharedRegion`, `Arc<SharedRegion>` | what they always can: copy in and out, atomics |
/// | [`OwnedRegion`], [`Buffer`] | nothing: the window has it by value |
/// | `&MemoryRegion`, `Arc<MemoryRegion>` | it is the caller's memory, and its affair |
///
/// So memory that a peer may change is never visible as a slice, and stays registered while the window lives. Sealed.
pub trait BindableRegion: sealed::Bindable {}

impl<R: sealed::Bindable> BindableRegion for R {}

/// The place of a region, for a request to bind.
#[derive(Debug)]
#[allow(unnameable_types)] // of the sealed trait
pub struct Target<'r> {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) pd: &'r ProtectionDomain,
    /// The address, as requests use it, of its first byte.
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) access: AccessFlags,
}

mod sealed {
    #[allow(unnameable_types)] // that is how it is sealed
    pub trait Bindable {
        fn target(&self) -> super::Target<'_>;
    }
}

impl<'r> Target<'r> {
    fn of<M>(registration: &'r Registration<M>) -> Self {
        Self {
            mr: registration.as_raw(),
            pd: registration.pd(),
            address: registration.device_address(0),
            length: registration.length(),
            access: registration.access(),
        }
    }
}

impl sealed::Bindable for OwnedRegion {
    fn target(&self) -> Target<'_> {
        Target::of(self.registration())
    }
}

impl sealed::Bindable for Buffer {
    fn target(&self) -> Target<'_> {
        let address = self.device_address();
        Target { address, length: self.len(), ..Target::of(self.registration()) }
    }
}

/// Through what keeps it alive and shows no bytes.
macro_rules! shared {
    ($($region:ident)+) => {$(
        impl sealed::Bindable for &$region {
            fn target(&self) -> Target<'_> {
                Target::of(self.registration())
            }
        }

        impl sealed::Bindable for Arc<$region> {
            fn target(&self) -> Target<'_> {
                Target::of(self.registration())
            }
        }
    )+};
}

shared!(SharedRegion MemoryRegion);
