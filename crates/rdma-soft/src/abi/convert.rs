//! Converts numbers, strings and structs to their C forms.

use std::ffi::{c_char, c_int};
use std::ptr;

/// Converts a limit, saturating at the largest C integer.
pub(super) fn int(number: u64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Copies as much of a string as fits into a zeroed field, and leaves at least the last byte zero.
pub(super) fn put(field: &mut [c_char], text: &str) {
    let space = field.len() - 1;
    for (to, from) in field[..space].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

/// Copies as much of `known` as fits into a program's struct of `size` bytes, and zeroes the rest of that struct.
///
/// # Safety
///
/// `size` bytes at `out` are writable.
pub(super) unsafe fn fill<T: Copy>(known: &T, out: *mut T, size: usize) {
    // SAFETY: by this function's contract.
    unsafe { out.cast::<u8>().write_bytes(0, size) };
    let common = size.min(size_of::<T>());
    // SAFETY: as above, and `common` does not exceed the size of either struct.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(ptr::from_ref(known).cast(), common) };
}
