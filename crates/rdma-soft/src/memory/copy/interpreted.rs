//! Moves for miri, which knows no assembly. It runs the tests of the copy alone, in which nobody else uses the
//! bytes meanwhile.
#![allow(unsafe_code)]

use super::moves::Moves;

#[derive(Debug)]
pub(super) struct Native;

macro_rules! moves {
    ($($name:ident: $size:literal;)+) => {$(
        unsafe fn $name(source: *const u8, sink: *mut u8) {
            // SAFETY: valid for so many bytes by the contract of `Moves` (SAFETY.md F10); bytes have no alignment, and
            // `copy` allows overlap.
            unsafe { std::ptr::copy(source, sink, $size) };
        }
    )+};
}

// SAFETY: each function moves as many bytes as its name says, and no others (SAFETY.md F10). That a word is one
// store is nothing that an interpreter of one thread could see.
unsafe impl Moves for Native {
    moves! { move_1: 1; move_2: 2; move_4: 4; move_8: 8; move_16: 16; move_64: 64; }
}
