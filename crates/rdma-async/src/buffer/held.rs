//! What an operation has while the device uses it: one type for all kinds of buffers, so that a slot holds it without
//! an allocation.

use std::mem::{self, ManuallyDrop};

use rdma_mem::Buffer;

use crate::buffer::shared::SharedBuffer;
use crate::buffer::view::BufferSlice;
use crate::buffer::window::Window;

/// The memory of a request. Not for programs: what generic operations are made of.
#[derive(Debug, Default)]
#[allow(unnameable_types, clippy::exhaustive_enums)] // not for programs
pub enum Held {
    #[default]
    Nothing,
    Exclusive(BufferSlice),
    Rarer(Rarer),
}

/// What few requests have: apart, so that the others do not ask for it.
#[derive(Debug)]
#[allow(unnameable_types, clippy::exhaustive_enums)] // not for programs
pub enum Rarer {
    Shared(SharedBuffer),
    Window(Window),
}

impl Held {
    /// Moves it where nothing is.
    #[inline]
    pub(crate) fn move_to(&mut self, entry: &mut Self) {
        debug_assert!(matches!(entry, Self::Nothing));
        // Nothing, which is not dropped: the compiler would see to it in each place.
        let _ = ManuallyDrop::new(mem::replace(entry, mem::take(self)));
    }
}

pub(crate) mod sealed {
    use super::Held;

    /// What a slot can hold and give back as it was.
    #[allow(unnameable_types)] // that is how it is sealed
    pub trait Lease: Sized + Send + 'static {
        #[doc(hidden)]
        fn into_held(self) -> Held;
        /// `None` if it is another kind, which does not happen to what this type has made.
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

/// No memory.
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
