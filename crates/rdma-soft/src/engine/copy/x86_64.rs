//! The copy in assembly: words, then cache lines, then the string instruction.
#![allow(unsafe_code)]

use std::arch::asm;

/// From here on a loop of 64 bytes is faster than one of words.
const LINES: usize = 64;
/// From here on the string instruction is, wherever the sink is aligned.
const STRING: usize = 4096;

/// Moves one word of the register's size at `offset`.
macro_rules! move_at {
    ($source:ident, $sink:ident, $register:literal, $offset:expr) => {{
        let (from, to) = ($source.wrapping_add($offset), $sink.wrapping_add($offset));
        // SAFETY: the moved bytes lie inside both ranges, since the offset and the size of the word
        // are no more than the length; the assembly touches nothing else (SAFETY.md F10).
        unsafe {
            asm!(
                concat!("mov {word:", $register, "}, [{from}]"),
                concat!("mov [{to}], {word:", $register, "}"),
                word = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }};
}

/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes.
#[inline]
pub(super) unsafe fn device_copy(source: *const u8, sink: *mut u8, length: usize) {
    let body = match length {
        0 => return,
        1 => {
            // SAFETY: one byte of each range (SAFETY.md F10).
            unsafe {
                asm!(
                    "mov {byte}, [{from}]", "mov [{to}], {byte}",
                    byte = out(reg_byte) _, from = in(reg) source, to = in(reg) sink,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        2..4 => {
            move_at!(source, sink, "x", 0);
            return move_at!(source, sink, "x", length - 2);
        }
        4..8 => {
            move_at!(source, sink, "e", 0);
            return move_at!(source, sink, "e", length - 4);
        }
        8..LINES => 0,
        // SAFETY: this function's contract.
        LINES..STRING => unsafe { copy_lines(source, sink, length - 8) },
        // SAFETY: this function's contract.
        _ => unsafe { copy_string(source, sink, length - 8) },
    };
    let mut offset = body;
    while offset + 8 < length {
        move_at!(source, sink, "r", offset);
        offset += 8;
    }
    // The end of the message, in one store after all others.
    move_at!(source, sink, "r", length - 8);
}

/// Copies all whole lines of 64 bytes; says how many bytes that were.
///
/// # Safety
///
/// As for [`device_copy`].
#[inline]
unsafe fn copy_lines(source: *const u8, sink: *mut u8, length: usize) -> usize {
    let mut offset = 0;
    while offset + 64 <= length {
        let (from, to) = (source.wrapping_add(offset), sink.wrapping_add(offset));
        // SAFETY: 64 bytes of both ranges (SAFETY.md F10).
        unsafe {
            asm!(
                "movups {a}, [{from}]", "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]", "movups {d}, [{from} + 48]",
                "movups [{to}], {a}", "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}", "movups [{to} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
        offset += 64;
    }
    offset
}

/// Copies all of it; says how many bytes that were.
///
/// # Safety
///
/// As for [`device_copy`].
#[inline]
unsafe fn copy_string(source: *const u8, sink: *mut u8, length: usize) -> usize {
    // SAFETY: exactly both ranges; the direction flag is clear by the ABI (SAFETY.md F10).
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") length => _, inout("rsi") source => _, inout("rdi") sink => _,
            options(nostack, preserves_flags),
        );
    }
    length
}
