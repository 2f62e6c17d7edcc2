//! Moves for Miri, which supports no assembly. Miri runs only the tests of the copy, in which no other thread uses the
//! bytes.
#![allow(unsafe_code)]

use super::moves::Moves;

#[derive(Debug)]
pub(super) struct Native;

macro_rules! moves {
    ($($name:ident: $size:literal;)+) => {$(
        unsafe fn $name(source: *const u8, sink: *mut u8) {
            // SAFETY: both sides are valid for this many bytes by the contract of `Moves` (SAFETY.md F10). Bytes need
            // no alignment, and `copy` allows overlap.
            unsafe { std::ptr::copy(source, sink, $size) };
        }
    )+};
}

// SAFETY: each function moves as many bytes as its name states, and no others (SAFETY.md F10). There is no other thread
// that could observe whether a word is written by one store.
unsafe impl Moves for Native {
    moves! { move_1: 1; move_2: 2; move_4: 4; move_8: 8; move_16: 16; move_64: 64; }
}
