//! The instructions of x86-64: SSE2, which every such processor has, AVX where available, and `rep movsb`.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::is_x86_feature_detected as detected;

use super::moves::{Moves, move_lines};

/// From this length on, `rep movsb` is faster than 16-byte vectors.
const STRING_BESIDE_SSE: usize = 2048;
/// From this length on, `rep movsb` is faster than 32-byte vectors.
const STRING_BESIDE_AVX: usize = 32 << 10;
/// From this length on, 32-byte vectors are faster than 16-byte ones.
const AVX: usize = 128;

/// Returns true if `rep movsb` is slow. On AMD Zen 3, it moves 3 GB/s if the sink is 1 to 31 bytes after the source, modulo
/// the page size. Vectors move more than 25 GB/s there. The rest of the 64 bytes is a margin.
fn is_string_slow(source: *const u8, sink: *const u8) -> bool {
    (1..64).contains(&(sink.addr().wrapping_sub(source.addr()) % 4096))
}

/// Moves bytes with the best instructions that this processor has.
#[derive(Debug)]
pub(super) struct Native;

/// Moves one word through a register of the same size.
macro_rules! move_word {
    ($source:ident, $sink:ident, $class:ident, $register:literal) => {
        // SAFETY: this reads and writes only the words at the two addresses, which are valid by the contract of the
        // surrounding function (SAFETY.md F10).
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

// SAFETY: each instruction reads and writes as many bytes as its name states. Aligned words of up to eight bytes are
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
        // SAFETY: this accesses 16 bytes on each side, which the contract guarantees (SAFETY.md F10).
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
        // SAFETY: this accesses 64 bytes on each side, which the contract guarantees (SAFETY.md F10).
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
            // SAFETY: by this function's contract.
            unsafe { move_many_by_sse(source, sink, length) }
        } else if length < STRING_BESIDE_AVX || is_string_slow(source, sink) {
            // SAFETY: by this function's contract; the length is at least 128, and the processor has AVX
            // (SAFETY.md F10).
            unsafe { move_many_by_avx(source, sink, length) }
        } else {
            // SAFETY: by this function's contract.
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
    if length < STRING_BESIDE_SSE || is_string_slow(source, sink) {
        // SAFETY: by this function's contract.
        unsafe { move_lines::<Native>(source, sink, length) }
    } else {
        // SAFETY: by this function's contract.
        unsafe { move_string(source, sink, length) }
    }
}

/// Returns the distance from the beginning of a range to its next cache line, 1 to 64 bytes.
fn next_line(sink: *const u8) -> usize {
    64 - sink.addr() % 64
}

/// Moves 128 bytes or more, in 64-byte lines that are aligned in the sink, except at both ends.
///
/// # Safety
///
/// See [`Moves::move_many`]. In addition, `length` must be at least 128, and the processor must have AVX.
unsafe fn move_many_by_avx(source: *const u8, sink: *mut u8, length: usize) {
    let skip = next_line(sink);
    // SAFETY: this moves the first 64 of at least 128 bytes, then pairs of whole lines from the next line on. Each pair
    // ends within the ranges. The last move is of the last 128 bytes of both ranges (SAFETY.md F10). All vector
    // registers are declared as clobbered because `vzeroupper` changes them.
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

/// Moves the first 64 bytes, then everything from the sink's next cache line on with a single instruction.
///
/// # Safety
///
/// See [`Moves::move_many`].
unsafe fn move_string(source: *const u8, sink: *mut u8, length: usize) {
    // With an unaligned sink, the instruction takes twice as long.
    // SAFETY: by this function's contract, there are at least 64 bytes (SAFETY.md F10).
    unsafe { Native::move_64(source, sink) };
    let skip = next_line(sink);
    let (source, sink) = (source.wrapping_add(skip), sink.wrapping_add(skip));
    // SAFETY: this moves exactly the rest of both ranges. The ABI guarantees that the direction flag is clear
    // (SAFETY.md F10).
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") length - skip => _, inout("rsi") source => _, inout("rdi") sink => _,
            options(nostack, preserves_flags),
        );
    }
}
