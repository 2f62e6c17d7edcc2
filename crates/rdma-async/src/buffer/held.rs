//! The memory of an operation while the device uses it. One enum holds all kinds of buffers, so a slot needs no
//! allocation.

use rdma_connect::messaging::Window;
use std::mem;

use rdma_mem::{Buffer, SliceMut, SliceRef};
use tokio::sync::OwnedSemaphorePermit;

use crate::buffer::shared::SharedBuffer;
use crate::buffer::view::BufferSlice;

/// The memory of a request. Internal: only generic operations use it.
#[derive(Debug, Default)]
#[allow(unnameable_types, clippy::exhaustive_enums)] // internal
pub enum Held {
    #[default]
    Nothing,
    Exclusive(BufferSlice),
    Rarer(Rarer),
}

/// Rare kinds of memory, kept apart so that the common kinds need no check for them.
#[derive(Debug)]
#[allow(unnameable_types, clippy::exhaustive_enums)] // internal
pub enum Rarer {
    Shared(SharedBuffer),
    Window(Window),
    /// A window that lends a buffer.
    Lent(Window<Buffer>),
    /// Boxed, so that the other kinds stay short.
    Permitted(Box<Permitted>),
}

/// Memory with the permit for its request. If the operation is dropped, both are released when the request is over.
#[derive(Debug)]
#[allow(unnameable_types)] // internal
pub struct Permitted {
    pub(crate) part: BufferSlice,
    pub(crate) _permit: OwnedSemaphorePermit,
}

pub(crate) mod sealed {
    use super::{Held, SliceMut, SliceRef};

    /// Memory that a slot can hold and return unchanged.
    #[allow(unnameable_types)] // this seals the trait
    pub trait Lease: Sized + Send + 'static {
        #[doc(hidden)]
        fn into_held(self) -> Held;
        /// Takes the memory back. Returns `None` for another kind of memory. This cannot happen, because a slot returns
        /// the memory that it was given.
        #[doc(hidden)]
        fn take_from(held: &mut Held) -> Option<Self>;
        /// Returns the bytes to send or write, if there are any.
        #[doc(hidden)]
        #[inline]
        fn source(&self) -> Option<SliceRef<'_>> {
            None
        }
        /// Returns the bytes to receive or read into, if there are any.
        #[doc(hidden)]
        #[inline]
        fn target(&mut self) -> Option<SliceMut<'_>> {
            None
        }
    }
}

use sealed::Lease;

/// Memory that an operation reads: a [`Buffer`], a part of one, or a shared one. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be lent to an operation",
    note = "operations take a `Buffer`, a `BufferSlice`, or to send and write from also a `SharedBuffer`"
)]
pub trait Source: Lease {}

/// Memory that an operation writes: a [`Buffer`], or a part of one. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received or read into",
    note = "operations that write memory take a `Buffer` or a `BufferSlice`"
)]
pub trait Target: Source {}

impl Lease for Buffer {
    #[inline]
    fn into_held(self) -> Held {
        Held::Exclusive(self.into())
    }

    #[inline]
    fn take_from(held: &mut Held) -> Option<Self> {
        BufferSlice::take_from(held).map(BufferSlice::into_inner)
    }

    #[inline]
    fn source(&self) -> Option<SliceRef<'_>> {
        (!self.is_empty()).then(|| self.as_slice())
    }

    #[inline]
    fn target(&mut self) -> Option<SliceMut<'_>> {
        (!self.is_empty()).then(|| self.as_slice_mut())
    }
}

impl Lease for BufferSlice {
    #[inline]
    fn into_held(self) -> Held {
        Held::Exclusive(self)
    }

    #[inline]
    fn take_from(held: &mut Held) -> Option<Self> {
        // Checked in place first, so that only this part is moved.
        if !matches!(held, Held::Exclusive(_)) {
            return None;
        }
        match mem::take(held) {
            Held::Exclusive(part) => Some(part),
            Held::Nothing | Held::Rarer(_) => None,
        }
    }

    #[inline]
    fn source(&self) -> Option<SliceRef<'_>> {
        (!self.range().is_empty()).then(|| self.as_slice())
    }

    #[inline]
    fn target(&mut self) -> Option<SliceMut<'_>> {
        (!self.range().is_empty()).then(|| self.as_slice_mut())
    }
}

impl Lease for SharedBuffer {
    #[inline]
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Shared(self))
    }

    #[inline]
    fn take_from(held: &mut Held) -> Option<Self> {
        match mem::take(held) {
            Held::Rarer(Rarer::Shared(shared)) => Some(shared),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }

    #[inline]
    fn source(&self) -> Option<SliceRef<'_>> {
        (!self.is_empty()).then(|| self.as_slice())
    }
}

impl Lease for Window {
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Window(self))
    }

    fn take_from(held: &mut Held) -> Option<Self> {
        match mem::take(held) {
            Held::Rarer(Rarer::Window(window)) => Some(window),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }
}

impl Lease for Window<Buffer> {
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Lent(self))
    }

    fn take_from(held: &mut Held) -> Option<Self> {
        match mem::take(held) {
            Held::Rarer(Rarer::Lent(window)) => Some(window),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }
}

impl Lease for Permitted {
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Permitted(Box::new(self)))
    }

    fn take_from(held: &mut Held) -> Option<Self> {
        match mem::take(held) {
            Held::Rarer(Rarer::Permitted(permitted)) => Some(*permitted),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }

    fn source(&self) -> Option<SliceRef<'_>> {
        self.part.source()
    }
}

/// Memory of any kind.
impl Lease for Held {
    #[inline]
    fn into_held(self) -> Held {
        self
    }

    #[inline]
    fn take_from(held: &mut Held) -> Option<Self> {
        Some(mem::take(held))
    }
}

/// `()` stands for no memory.
impl Lease for () {
    fn into_held(self) -> Held {
        Held::Nothing
    }

    fn take_from(_: &mut Held) -> Option<Self> {
        Some(())
    }
}

impl Source for Buffer {}
impl Source for BufferSlice {}
impl Source for SharedBuffer {}
impl Source for Permitted {}
impl Target for Buffer {}
impl Target for BufferSlice {}
