//! The processor's copies to and from memory that a device uses at the same time.
//!
//! No reference to such memory is formed. On x86-64 the copy is assembly, which the compiler treats as
//! opaque; elsewhere it is made of relaxed atomics. `--cfg rdma_visible_copies` replaces it by the
//! copy that AddressSanitizer intercepts.
#![allow(unsafe_code)]

/// Copies `length` bytes; what is written meanwhile may be seen in part.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `length` bytes. They do not overlap.
#[cfg(any(rdma_visible_copies, miri))]
#[inline]
pub(crate) unsafe fn copy_opaque(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: SAFETY.md F16: by this function's contract.
    unsafe { std::ptr::copy(source, target, length) }
}

/// Copies `length` bytes; what is written meanwhile may be seen in part.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `length` bytes. They do not overlap.
#[cfg(all(target_arch = "x86_64", not(any(rdma_visible_copies, miri))))]
#[inline]
pub(crate) unsafe fn copy_opaque(source: *const u8, target: *mut u8, length: usize) {
    /// Below this the string instruction takes longer to start than a loop to finish.
    const STRING: usize = 128;

    if length >= STRING {
        // SAFETY: SAFETY.md F16: the contract has both ranges, and the direction flag is clear by the
        // ABI.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length => _, inout("rsi") source => _, inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    let words = length / 8;
    for offset in (0..words * 8).step_by(8) {
        let (from, to) = (source.wrapping_add(offset), target.wrapping_add(offset));
        // SAFETY: SAFETY.md F16: eight bytes within both ranges.
        unsafe {
            std::arch::asm!(
                "mov {word}, [{from}]", "mov [{to}], {word}",
                word = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }
    for offset in words * 8..length {
        let (from, to) = (source.wrapping_add(offset), target.wrapping_add(offset));
        // SAFETY: SAFETY.md F16: one byte within both ranges.
        unsafe {
            std::arch::asm!(
                "mov {byte}, [{from}]", "mov [{to}], {byte}",
                byte = out(reg_byte) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `length` bytes; what is written meanwhile may be seen in part.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `length` bytes. They do not overlap.
#[cfg(not(any(target_arch = "x86_64", rdma_visible_copies, miri)))]
#[inline]
pub(crate) unsafe fn copy_opaque(source: *const u8, target: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    let aligned = source.addr().is_multiple_of(8) && target.addr().is_multiple_of(8);
    let words = if aligned { length / 8 } else { 0 };
    for word in 0..words {
        let (from, to) = (source.wrapping_add(word * 8), target.wrapping_add(word * 8));
        // SAFETY: SAFETY.md F16: aligned, and within the source; it is only loaded from.
        let from = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) };
        // SAFETY: SAFETY.md F16: aligned, and within the target.
        let to = unsafe { AtomicU64::from_ptr(to.cast()) };
        to.store(from.load(Relaxed), Relaxed);
    }
    for offset in words * 8..length {
        // SAFETY: SAFETY.md F16: within the source; it is only loaded from.
        let from = unsafe { AtomicU8::from_ptr(source.wrapping_add(offset).cast_mut()) };
        // SAFETY: SAFETY.md F16: within the target.
        let to = unsafe { AtomicU8::from_ptr(target.wrapping_add(offset)) };
        to.store(from.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (0..400).map(|n| u8::try_from(n % 251).unwrap()).collect();
        for length in (0..140).chain([300]) {
            for (from, to) in [(0, 0), (1, 8), (8, 1), (3, 5)] {
                let mut target = [0xee; 400];
                let (a, b) = (source[from..].as_ptr(), target[to..].as_mut_ptr());
                // SAFETY: SAFETY.md F16: at most 300 bytes from offset 8 of 400.
                unsafe { copy_opaque(a, b, length) };
                assert_eq!(target[to..to + length], source[from..from + length]);
                let beside = target[..to].iter().chain(&target[to + length..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{length} at {to}");
            }
        }
    }
}
