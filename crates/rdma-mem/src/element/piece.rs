//! Registered bytes as raw parts.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use rdma_types::Lkey;

use crate::device::protection_domain::ProtectionDomain;

/// Bytes of a region: where the processor finds them, where a device does, and with which key.
///
/// It promises nothing of what the bytes are, nor who else uses them.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'r> {
    base: NonNull<u8>,
    pub(super) length: usize,
    /// Of the first byte, as requests use it.
    pub(super) address: u64,
    pub(super) lkey: Lkey,
    pub(super) pd: &'r ProtectionDomain,
}

impl<'r> Piece<'r> {
    /// # Safety
    /// `length` bytes at `base` are one region's, or a part of it, and stay mapped for `'r`;
    /// `address`, `lkey` and `pd` are those of their registration.
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

    /// The first `middle` bytes, and the rest.
    ///
    /// # Panics
    /// If `middle` is more than the length.
    #[inline]
    #[track_caller]
    pub(crate) fn split_at(self, middle: usize) -> (Self, Self) {
        assert!(middle <= self.length, "split at {middle} of {} bytes", self.length);
        // SAFETY: SAFETY.md F16: within the piece, or its end.
        let base = unsafe { self.base.add(middle) };
        let (length, address) = (self.length - middle, self.address.wrapping_add(middle as u64));
        (Self { length: middle, ..self }, Self { base, length, address, ..self })
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// For `'b` the bytes are initialised, and nobody writes them but a device, for requests of
    /// this machine whose poster promised that nobody uses them meanwhile.
    #[inline]
    pub(crate) unsafe fn bytes<'b>(self) -> &'b [u8]
    where
        'r: 'b,
    {
        // SAFETY: SAFETY.md F16: mapped by the contract of `new`, the rest is this function's.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }

    /// The bytes as an exclusive slice.
    ///
    /// # Safety
    /// What [`bytes`](Self::bytes) asks for, and nobody else reads them for `'b` either.
    #[inline]
    pub(crate) unsafe fn bytes_mut<'b>(self) -> &'b mut [u8]
    where
        'r: 'b,
    {
        // SAFETY: SAFETY.md F16: mapped by the contract of `new`, the rest is this function's.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }

    /// As a slice over it is shown.
    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name}({} bytes at {:?}, {:?})", self.length, self.base, self.lkey)
    }
}
