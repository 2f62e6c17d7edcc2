//! The instructions of aarch64.
#![allow(unsafe_code)]

use std::arch::asm;

use super::moves::Moves;

#[derive(Debug)]
pub(super) struct Native;

/// Moves one word through a register of the same size.
macro_rules! move_word {
    ($source:ident, $sink:ident, $load:literal, $store:literal, $class:ident, $register:literal) => {
        // SAFETY: this reads and writes only the words at the two addresses, which are valid by the contract of the
        // surrounding function (SAFETY.md F10).
        unsafe {
            asm!(
                concat!($load, " {word:", $register, "}, [{from}]"),
                concat!($store, " {word:", $register, "}, [{to}]"),
                word = out($class) _, from = in(reg) $source, to = in(reg) $sink,
                options(nostack, preserves_flags),
            );
        }
    };
}

// SAFETY: each instruction reads and writes as many bytes as its name states. Aligned words of up to eight bytes are
// single-copy atomic (Arm ARM, B2.2.1; SAFETY.md F10).
unsafe impl Moves for Native {
    #[inline]
    unsafe fn move_1(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, "ldrb", "strb", reg, "w");
    }

    #[inline]
    unsafe fn move_2(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, "ldrh", "strh", reg, "w");
    }

    #[inline]
    unsafe fn move_4(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, "ldr", "str", reg, "w");
    }

    #[inline]
    unsafe fn move_8(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, "ldr", "str", reg, "x");
    }

    #[inline]
    unsafe fn move_16(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, "ldr", "str", vreg, "q");
    }

    #[inline]
    unsafe fn move_64(source: *const u8, sink: *mut u8) {
        // SAFETY: this accesses 64 bytes on each side, which the contract guarantees (SAFETY.md F10).
        unsafe {
            asm!(
                "ldp {a:q}, {b:q}, [{from}]", "ldp {c:q}, {d:q}, [{from}, #32]",
                "stp {a:q}, {b:q}, [{to}]", "stp {c:q}, {d:q}, [{to}, #32]",
                a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
                from = in(reg) source, to = in(reg) sink,
                options(nostack, preserves_flags),
            );
        }
    }
}
