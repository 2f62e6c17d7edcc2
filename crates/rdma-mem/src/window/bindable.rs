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

/// The region of a [`MemoryWindow`](crate::MemoryWindow), or a pointer that keeps it alive.
///
/// | | how other code can access the bytes while the window exists |
/// |---|---|
/// | `&SharedRegion`, `Arc<SharedRegion>` | as always: copies in and out, atomics |
/// | [`OwnedRegion`], [`Buffer`] | not at all: the window owns it by value |
/// | `&MemoryRegion`, `Arc<MemoryRegion>` | as the caller permits: the caller owns the memory and is responsible for it |
///
/// Memory that a peer may change is therefore never visible as a slice, and stays registered while
/// the window lives. The trait is sealed.
pub trait BindableRegion: sealed::Bindable {}

impl<R: sealed::Bindable> BindableRegion for R {}

/// The properties of a region that a bind request needs.
#[derive(Debug)]
#[allow(unnameable_types)] // of the sealed trait
pub struct Target<'r> {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) pd: &'r ProtectionDomain,
    /// The address of the region's first byte in requests.
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) access: AccessFlags,
    /// Whether windows may only give peers the right to read.
    pub(crate) is_read_only: bool,
}

mod sealed {
    #[allow(unnameable_types)] // this seals it
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
            is_read_only: false,
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
        let (length, is_read_only) = (self.len(), self.is_read_only());
        Target { address, length, is_read_only, ..Target::of(self.registration()) }
    }
}

/// Implements the trait for pointers that keep a region alive without exposing its bytes.
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
