//! The instructions of x86-64: SSE2, which each such processor has, AVX where available, and the string instruction.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::is_x86_feature_detected as detected;

use super::moves::{Moves, move_lines};

/// From this length on, the string instruction is faster than vectors of 16 bytes.
const STRING_BESIDE_SSE: usize = 2048;
/// From this length on, it is faster than vectors of 32 bytes.
const STRING_BESIDE_AVX: usize = 32 << 10;
/// From this length on, vectors of 32 bytes are faster than those of 16.
const AVX: usize = 128;

/// Moves by the best instructions that this processor has.
#[derive(Debug)]
pub(super) struct Native;

/// Moves one word through a register of its size.
macro_rules! move_word {
    ($source:ident, $sink:ident, $class:ident, $register:literal) => {
        // SAFETY: reads and writes the word at the two places, which are valid by the contract of the surrounding
        // function, and touches nothing else (SAFETY.md F10).
        unsafe {
            asm!(
                concat!("mov {word", $register, "}, [{from}]"),
                concat!("mov [{to}], {word", $register, "}"),
                word = out($class) _, from = in(reg) $source, to = in(reg) $sink,
                options(nostack, preserves_flags),
            );
        }
    };
}

// SAFETY: each instruction reads and writes as many bytes as its name states; aligned words of up to eight bytes are
// single stores (Intel SDM volume 3, 9.1.1; AMD APM volume 2, 7.3.2; SAFETY.md F10).
unsafe impl Moves for Native {
    #[inline]
    unsafe fn move_1(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, reg_byte, "");
    }

    #[inline]
    unsafe fn move_2(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, reg, ":x");
    }

    #[inline]
    unsafe fn move_4(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, reg, ":e");
    }

    #[inline]
    unsafe fn move_8(source: *const u8, sink: *mut u8) {
        move_word!(source, sink, reg, ":r");
    }

    #[inline]
    unsafe fn move_16(source: *const u8, sink: *mut u8) {
        // SAFETY: 16 bytes of both, which the contract guarantees (SAFETY.md F10).
        unsafe {
            asm!(
                "movups {word}, [{from}]", "movups [{to}], {word}",
                word = out(xmm_reg) _, from = in(reg) source, to = in(reg) sink,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn move_64(source: *const u8, sink: *mut u8) {
        // SAFETY: 64 bytes of both, which the contract guarantees (SAFETY.md F10).
        unsafe {
            asm!(
                "movups {a}, [{from}]", "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]", "movups {d}, [{from} + 48]",
                "movups [{to}], {a}", "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}", "movups [{to} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                from = in(reg) source, to = in(reg) sink,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn move_many(source: *const u8, sink: *mut u8, length: usize) {
        if length < AVX || !detected!("avx") {
            // SAFETY: this function's contract.
            unsafe { move_many_by_sse(source, sink, length) }
        } else if length < STRING_BESIDE_AVX {
            // SAFETY: this function's contract; there are at least 128, and the processor has AVX (SAFETY.md F10).
            unsafe { move_many_by_avx(source, sink, length) }
        } else {
            // SAFETY: this function's contract.
            unsafe { move_string(source, sink, length) }
        }
    }
}

/// Moves 64 bytes or more on any processor.
///
/// # Safety
///
/// See [`Moves::move_many`].
pub(super) unsafe fn move_many_by_sse(source: *const u8, sink: *mut u8, length: usize) {
    if length < STRING_BESIDE_SSE {
        // SAFETY: this function's contract.
        unsafe { move_lines::<Native>(source, sink, length) }
    } else {
        // SAFETY: this function's contract.
        unsafe { move_string(source, sink, length) }
    }
}

/// The distance from the beginning of a range to its next line, 1 to 64 bytes.
fn next_line(sink: *const u8) -> usize {
    64 - sink.addr() % 64
}

/// Moves 128 bytes or more, by lines that are aligned in the sink, except those at both ends.
///
/// # Safety
///
/// See [`Moves::move_many`]; in addition, there must be 128 bytes and AVX.
unsafe fn move_many_by_avx(source: *const u8, sink: *mut u8, length: usize) {
    let skip = next_line(sink);
    // SAFETY: the first 64 of at least 128 bytes; then whole pairs of lines from the next line on, as long as they end
    // before the ranges do; then the last 128 bytes of both ranges (SAFETY.md F10). All vector registers are declared
    // as clobbered, since `vzeroupper` changes them.
    unsafe {
        asm!(
            "vmovups ymm0, [{from}]", "vmovups ymm1, [{from} + 32]",
            "vmovups [{to}], ymm0", "vmovups [{to} + 32], ymm1",
            "add {from}, {skip}", "add {to}, {skip}",
            "cmp {from}, {last}", "jae 3f",
            "2:",
            "vmovups ymm0, [{from}]", "vmovups ymm1, [{from} + 32]",
            "vmovups ymm2, [{from} + 64]", "vmovups ymm3, [{from} + 96]",
            "vmovups [{to}], ymm0", "vmovups [{to} + 32], ymm1",
            "vmovups [{to} + 64], ymm2", "vmovups [{to} + 96], ymm3",
            "sub {from}, -128", "sub {to}, -128",
            "cmp {from}, {last}", "jb 2b",
            "3:",
            "vmovups ymm0, [{last}]", "vmovups ymm1, [{last} + 32]",
            "vmovups ymm2, [{last} + 64]", "vmovups ymm3, [{last} + 96]",
            "vmovups [{end} - 128], ymm0", "vmovups [{end} - 96], ymm1",
            "vmovups [{end} - 64], ymm2", "vmovups [{end} - 32], ymm3",
            "vzeroupper",
            from = inout(reg) source => _, to = inout(reg) sink => _, skip = in(reg) skip,
            last = in(reg) source.wrapping_add(length - 128), end = in(reg) sink.wrapping_add(length),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// Moves the whole range by one instruction, from the sink's first line on.
///
/// # Safety
///
/// See [`Moves::move_many`].
unsafe fn move_string(source: *const u8, sink: *mut u8, length: usize) {
    // With an unaligned sink the instruction takes twice as long.
    // SAFETY: the first 64 bytes, which there are (SAFETY.md F10).
    unsafe { Native::move_64(source, sink) };
    let skip = next_line(sink);
    let (source, sink) = (source.wrapping_add(skip), sink.wrapping_add(skip));
    // SAFETY: exactly the rest of both ranges; the direction flag is clear by the ABI (SAFETY.md F10).
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") length - skip => _, inout("rsi") source => _, inout("rdi") sink => _,
            options(nostack, preserves_flags),
        );
    }
}
