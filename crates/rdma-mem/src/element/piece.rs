//! Registered bytes as raw parts.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use rdma_types::Lkey;

use crate::device::protection_domain::ProtectionDomain;

/// Bytes of a region as raw parts: the address for the processor, the address for a device, the
/// length, the key and the domain.
///
/// A piece guarantees nothing about the contents of the bytes, or about other accesses to them.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'r> {
    base: NonNull<u8>,
    pub(super) length: usize,
    /// The address of the first byte in requests.
    pub(super) address: u64,
    pub(super) lkey: Lkey,
    pub(super) pd: &'r ProtectionDomain,
}

impl<'r> Piece<'r> {
    /// # Safety
    /// The `length` bytes at `base` lie in one region and stay mapped for `'r`. `address`, `lkey`
    /// and `pd` belong to that region's registration.
    #[inline]
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        length: usize,
        address: u64,
        lkey: Lkey,
        pd: &'r ProtectionDomain,
    ) -> Self {
        Self { base, length, address, lkey, pd }
    }

    /// Splits the piece into the first `middle` bytes and the rest.
    ///
    /// # Panics
    /// Panics if `middle` is more than the length.
    #[inline]
    #[track_caller]
    pub(crate) fn split_at(self, middle: usize) -> (Self, Self) {
        assert!(middle <= self.length, "split at {middle} of {} bytes", self.length);
        // SAFETY: SAFETY.md F16: the pointer is within the piece, or at its end.
        let base = unsafe { self.base.add(middle) };
        let (length, address) = (self.length - middle, self.address.wrapping_add(middle as u64));
        (Self { length: middle, ..self }, Self { base, length, address, ..self })
    }

    /// Returns the bytes as a slice.
    ///
    /// # Safety
    /// For `'b`, the bytes are initialised and only a device writes them. The device does so only
    /// for requests posted on this machine, by code that promised not to use the bytes until those
    /// requests complete.
    #[inline]
    pub(crate) unsafe fn bytes<'b>(self) -> &'b [u8]
    where
        'r: 'b,
    {
        // SAFETY: SAFETY.md F16: the bytes are mapped by the contract of `new`; the caller
        // guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }

    /// Returns the bytes as an exclusive slice.
    ///
    /// # Safety
    /// The contract of [`bytes`](Self::bytes) applies. In addition, no other code reads the bytes
    /// for `'b`.
    #[inline]
    pub(crate) unsafe fn bytes_mut<'b>(self) -> &'b mut [u8]
    where
        'r: 'b,
    {
        // SAFETY: SAFETY.md F16: the bytes are mapped by the contract of `new`; the caller
        // guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }

    /// Formats the piece with its length, pointer and key, preceded by `name`.
    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name}({} bytes at {:?}, {:?})", self.length, self.base, self.lkey)
    }
}
