//! Memory of the program in collectives: slices, and registered buffers.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use bytemuck::Pod;
use rdma_mem::{BufferPool, Error, ProtectionDomain};

/// A registered buffer of elements, created by [`Group::buffer`](crate::Group::buffer). Dereferences to a slice.
///
/// Collectives send long blocks from this memory without another copy. It is allocated from the group's pool, and returns
/// to the pool when the buffer is dropped.
///
/// If a collective fails, the device may still read the memory. The buffer then has other memory, and its elements are
/// unspecified. If there is no other memory, the buffer is empty.
pub struct Buffer<T> {
    bytes: Registered,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn allocate(pool: &BufferPool, len: usize) -> Result<Self, Error> {
        let length = len.checked_mul(size_of::<T>()).ok_or(Error::OutOfMemory { length: len })?;
        let mut bytes =
            Registered { memory: None, pool: pool.clone(), length, alignment: align_of::<T>() };
        bytes.allocate()?;
        Ok(Self { bytes, elements: PhantomData })
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.bytes.as_slice()
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.bytes.as_mut_slice()
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The memory of a [`Buffer`].
#[derive(Debug)]
struct Registered {
    /// `None` if the length is 0, or while the memory is lent.
    memory: Option<rdma_mem::Buffer>,
    pool: BufferPool,
    length: usize,
    alignment: usize,
}

impl Registered {
    fn allocate(&mut self) -> Result<(), Error> {
        if self.length > 0 {
            let mut memory = self.pool.allocate_aligned(self.length, self.alignment)?;
            memory.fill(0);
            self.memory = Some(memory);
        }
        Ok(())
    }

    fn as_slice<T: Pod>(&self) -> &[T] {
        // An empty slice of bytes may not be aligned.
        self.memory.as_deref().map(bytemuck::cast_slice).unwrap_or_default()
    }

    fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        self.memory.as_deref_mut().map(bytemuck::cast_slice_mut).unwrap_or_default()
    }

    /// Returns true if the memory is of this domain.
    fn is_of(&self, pd: &ProtectionDomain) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.pd().as_raw() == pd.as_raw())
    }
}

/// The memory of a [`Buffer`] in a collective. If the memory is still lent when this is dropped, it is replaced.
#[allow(unnameable_types)] // this seals `Memory`
#[derive(Debug)]
pub struct Lendable<'a>(&'a mut Registered);

impl Drop for Lendable<'_> {
    fn drop(&mut self) {
        if self.0.memory.is_none() {
            // Without memory, the buffer is empty.
            let _ = self.0.allocate();
        }
    }
}

/// The elements that a collective works on.
#[allow(unnameable_types, clippy::exhaustive_enums)] // this seals `Memory`
#[derive(Debug)]
pub enum Elements<'a, T> {
    Slice(&'a mut [T]),
    Registered(Lendable<'a>),
}

impl<'a, T: Pod> Elements<'a, T> {
    /// Returns the same memory as elements of one byte.
    pub(crate) fn into_bytes(self) -> Elements<'a, u8> {
        match self {
            Self::Slice(slice) => Elements::Slice(bytemuck::cast_slice_mut(slice)),
            Self::Registered(memory) => Elements::Registered(memory),
        }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Slice(slice) => slice,
            Self::Registered(memory) => memory.0.as_slice(),
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::Slice(slice) => slice,
            Self::Registered(memory) => memory.0.as_mut_slice(),
        }
    }

    /// Lends registered memory of this domain, with the range in bytes of these elements.
    pub(crate) fn lend(
        &mut self,
        part: &Range<usize>,
        pd: &ProtectionDomain,
    ) -> Option<(rdma_mem::Buffer, Range<usize>)> {
        let Self::Registered(memory) = self else { return None };
        let range = part.start * size_of::<T>()..part.end * size_of::<T>();
        let memory = if memory.0.is_of(pd) { memory.0.memory.take() } else { None };
        memory.map(|memory| (memory, range))
    }

    /// Restores the memory that was lent.
    pub(crate) fn restore(&mut self, memory: rdma_mem::Buffer) {
        if let Self::Registered(lent) = self {
            lent.0.memory = Some(memory);
        }
    }
}

/// Memory that a collective works on: a slice, an array, a [`Vec`], a [`Box`], or a [`Buffer`] of the group.
///
/// Long blocks of a [`Buffer`] are sent from its own memory. Those of other memory are copied to registered memory first.
pub trait Memory {
    /// The type of the elements.
    type Element: Pod;

    #[doc(hidden)]
    fn elements(&mut self) -> Elements<'_, Self::Element>;
}

macro_rules! slices {
    ($($(const $N:ident)? $slice:ty;)+) => {$(
        impl<T: Pod $(, const $N: usize)?> Memory for $slice {
            type Element = T;

            fn elements(&mut self) -> Elements<'_, T> {
                Elements::Slice(self)
            }
        }
    )+};
}

slices! { [T]; Vec<T>; Box<[T]>; const N [T; N]; }

impl<T: Pod> Memory for Buffer<T> {
    type Element = T;

    fn elements(&mut self) -> Elements<'_, T> {
        Elements::Registered(Lendable(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_is_lent_and_replaced() {
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0").unwrap();
        let (pd, other) = (context.allocate_pd().unwrap(), context.allocate_pd().unwrap());
        let mut buffer = Buffer::<u32>::allocate(&BufferPool::new(&pd), 100).unwrap();
        assert_eq!(buffer[..], [0; 100]);
        buffer[10..].fill(7);
        let place = buffer.as_ptr();
        let mut elements = buffer.elements();
        assert!(elements.lend(&(10..20), &other).is_none());
        let (memory, range) = elements.lend(&(10..20), &pd).unwrap();
        assert_eq!((memory.as_ptr().cast(), range), (place, 40..80));
        assert!(elements.lend(&(10..20), &pd).is_none());
        elements.restore(memory);
        let (memory, range) = elements.into_bytes().lend(&(1..2), &pd).unwrap();
        assert_eq!(range, 1..2);
        // The collective has failed.
        assert_eq!(buffer[..], [0; 100]);
        assert_ne!(buffer.as_ptr(), memory.as_ptr().cast());
        assert!([7_u32; 9].elements().lend(&(0..9), &pd).is_none());
    }
}
