//! The memory of an operation while the device uses it. One enum holds all kinds of buffers, so a slot needs no
//! allocation.

use std::mem::{self, ManuallyDrop};

use rdma_mem::Buffer;

use crate::buffer::shared::SharedBuffer;
use crate::buffer::view::BufferSlice;
use crate::buffer::window::Window;

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
}

impl Held {
    /// Moves the memory to `entry`, which must be empty.
    #[inline]
    pub(crate) fn move_to(&mut self, entry: &mut Self) {
        debug_assert!(matches!(entry, Self::Nothing));
        // The old value is `Nothing` and needs no drop. Without `ManuallyDrop`, the compiler would emit one at each
        // call.
        let _ = ManuallyDrop::new(mem::replace(entry, mem::take(self)));
    }
}

pub(crate) mod sealed {
    use super::Held;

    /// Memory that a slot can hold and return unchanged.
    #[allow(unnameable_types)] // this seals the trait
    pub trait Lease: Sized + Send + 'static {
        #[doc(hidden)]
        fn into_held(self) -> Held;
        /// Converts the memory back. Returns `None` for another kind of memory. This cannot happen, because a slot
        /// returns the memory that it was given.
        #[doc(hidden)]
        fn from_held(held: Held) -> Option<Self>;
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
    fn from_held(held: Held) -> Option<Self> {
        BufferSlice::from_held(held).map(BufferSlice::into_inner)
    }
}

impl Lease for BufferSlice {
    #[inline]
    fn into_held(self) -> Held {
        Held::Exclusive(self)
    }

    #[inline]
    fn from_held(held: Held) -> Option<Self> {
        match held {
            Held::Exclusive(part) => Some(part),
            Held::Nothing | Held::Rarer(_) => None,
        }
    }
}

impl Lease for SharedBuffer {
    #[inline]
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Shared(self))
    }

    #[inline]
    fn from_held(held: Held) -> Option<Self> {
        match held {
            Held::Rarer(Rarer::Shared(shared)) => Some(shared),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }
}

impl Lease for Window {
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Window(self))
    }

    fn from_held(held: Held) -> Option<Self> {
        match held {
            Held::Rarer(Rarer::Window(window)) => Some(window),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }
}

impl Lease for Window<Buffer> {
    fn into_held(self) -> Held {
        Held::Rarer(Rarer::Lent(self))
    }

    fn from_held(held: Held) -> Option<Self> {
        match held {
            Held::Rarer(Rarer::Lent(window)) => Some(window),
            Held::Nothing | Held::Exclusive(_) | Held::Rarer(_) => None,
        }
    }
}

/// `()` stands for no memory.
impl Lease for () {
    fn into_held(self) -> Held {
        Held::Nothing
    }

    fn from_held(_: Held) -> Option<Self> {
        Some(())
    }
}

impl Source for Buffer {}
impl Source for BufferSlice {}
impl Source for SharedBuffer {}
impl Target for Buffer {}
impl Target for BufferSlice {}
