//! Numbers, texts and structs in the forms that C has for them.

use std::ffi::{c_char, c_int};
use std::ptr;

/// Limits as C has them.
pub(super) fn int(number: u64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Copies a text, as much of it as leaves space for a zero after it.
pub(super) fn put(field: &mut [c_char], text: &str) {
    let space = field.len() - 1;
    for (to, from) in field[..space].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

/// Fills as much of a program's struct as both sides know, and zeroes the rest.
///
/// # Safety
///
/// `size` bytes may be written at `out`.
pub(super) unsafe fn fill<T: Copy>(known: &T, out: *mut T, size: usize) {
    // SAFETY: this function's contract.
    unsafe { out.cast::<u8>().write_bytes(0, size) };
    let common = size.min(size_of::<T>());
    // SAFETY: as above, and `common` is no more than either struct has.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(ptr::from_ref(known).cast(), common) };
}
