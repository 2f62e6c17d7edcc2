//! The processor's copies to and from memory that a device uses at the same time.
//!
//! No Rust reference to this memory is ever formed. On x86-64 the copy is assembly, which is opaque
//! to the compiler. Other machines copy [whole words](words) with 8-byte atomics, because a region
//! lends its memory only in this width. `--cfg rdma_visible_copies` replaces the copy with one that
//! AddressSanitizer intercepts.
#![allow(unsafe_code)]

#[cfg(any(test, miri, not(any(target_arch = "x86_64", rdma_visible_copies))))]
mod words;

/// Copies shared memory into `out`. The copy may contain only a part of a concurrent write.
///
/// # Safety
/// `source` is valid for reads and writes of `out.len()` bytes, and so are the aligned 8-byte words
/// that contain them. All of them lie in one region. Other code accesses that memory only with
/// 8-byte atomics, with these copies, or as a device. `out` does not overlap it.
#[inline]
pub(crate) unsafe fn copy_out(source: *mut u8, out: &mut [u8]) {
    #[cfg(any(miri, not(any(target_arch = "x86_64", rdma_visible_copies))))]
    // SAFETY: SAFETY.md F16: by this function's contract.
    unsafe {
        words::load(source, out);
    }
    #[cfg(all(any(target_arch = "x86_64", rdma_visible_copies), not(miri)))]
    // SAFETY: SAFETY.md F16: by this function's contract; `out` is exclusive, so the ranges do not
    // overlap.
    unsafe {
        copy_opaque(source, out.as_mut_ptr(), out.len());
    }
}

/// Copies `data` into shared memory. Concurrent readers may see only a part of it.
///
/// # Safety
/// The contract of [`copy_out`] applies, with `target` in place of `source` and `data` in place of
/// `out`.
#[inline]
pub(crate) unsafe fn copy_in(data: &[u8], target: *mut u8) {
    #[cfg(any(miri, not(any(target_arch = "x86_64", rdma_visible_copies))))]
    // SAFETY: SAFETY.md F16: by this function's contract.
    unsafe {
        words::store(data, target);
    }
    #[cfg(all(any(target_arch = "x86_64", rdma_visible_copies), not(miri)))]
    // SAFETY: SAFETY.md F16: by this function's contract, which also excludes an overlap.
    unsafe {
        copy_opaque(data.as_ptr(), target, data.len());
    }
}

/// # Safety
/// `source` is valid for reads and `target` for writes of `length` bytes. The ranges do not
/// overlap.
#[cfg(all(rdma_visible_copies, not(miri)))]
#[inline]
unsafe fn copy_opaque(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: SAFETY.md F16: by this function's contract.
    unsafe { std::ptr::copy(source, target, length) }
}

/// # Safety
/// `source` is valid for reads and `target` for writes of `length` bytes. The ranges do not
/// overlap.
#[cfg(all(target_arch = "x86_64", not(any(rdma_visible_copies, miri))))]
#[inline]
unsafe fn copy_opaque(source: *const u8, target: *mut u8, length: usize) {
    /// Below this length, a simple loop finishes before the string instruction has started up.
    const STRING: usize = 128;

    // On AMD Zen 3, the string instruction copies more than 25 GB/s. If the target is 1 to 31 bytes
    // after the source, modulo the page size, it copies only 3 GB/s; the rest of the 64 bytes is a
    // margin. A long `Vec` begins 16 bytes after the beginning of a page.
    let distance = target.addr().wrapping_sub(source.addr()) % 4096;
    if length >= STRING && !(1..64).contains(&distance) {
        // SAFETY: SAFETY.md F16: by the contract, both ranges are valid, and the ABI guarantees
        // that the direction flag is clear.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length => _, inout("rsi") source => _, inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    let lines = length / 64 * 64;
    for offset in (0..lines).step_by(64) {
        let (from, to) = (source.wrapping_add(offset), target.wrapping_add(offset));
        // SAFETY: SAFETY.md F16: the 64 bytes are within both ranges.
        unsafe {
            std::arch::asm!(
                "movups {a}, [{from}]", "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]", "movups {d}, [{from} + 48]",
                "movups [{to}], {a}", "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}", "movups [{to} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }
    let words = length / 8 * 8;
    for offset in (lines..words).step_by(8) {
        let (from, to) = (source.wrapping_add(offset), target.wrapping_add(offset));
        // SAFETY: SAFETY.md F16: the eight bytes are within both ranges.
        unsafe {
            std::arch::asm!(
                "mov {word}, [{from}]", "mov [{to}], {word}",
                word = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }
    for offset in words..length {
        let (from, to) = (source.wrapping_add(offset), target.wrapping_add(offset));
        // SAFETY: SAFETY.md F16: the byte is within both ranges.
        unsafe {
            std::arch::asm!(
                "mov {byte}, [{from}]", "mov [{to}], {byte}",
                byte = out(reg_byte) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicPtr, Ordering};

    use super::*;

    /// Memory that consists of whole aligned words, like a region's memory.
    #[repr(align(8))]
    struct Shared([u8; 400]);

    type Out = unsafe fn(*mut u8, &mut [u8]);
    type In = unsafe fn(&[u8], *mut u8);

    fn every_length_and_alignment(copy_out: Out, copy_in: In) {
        let numbers: Vec<u8> = (0..400).map(|n| u8::try_from(n % 251).unwrap()).collect();
        // Miri is slow, so it checks only a sample.
        let is_chosen = |&n: &usize| !cfg!(miri) || n < 18 || n.is_multiple_of(59);
        for length in (0..140).chain([300]).filter(is_chosen) {
            for at in [0, 1, 3, 8, 13, 63] {
                let (source, range) = (&numbers[5..5 + length], at..at + length);
                let mut shared = Shared([0xee; 400]);
                // SAFETY: SAFETY.md F16: at most 300 bytes are copied at an offset of at most 63,
                // and the 400 bytes consist of whole words.
                unsafe { copy_in(source, shared.0.as_mut_ptr().wrapping_add(at)) };
                assert_eq!(shared.0[range.clone()], *source);
                let beside = shared.0[..at].iter().chain(&shared.0[range.end..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{length} at {at}");

                let mut out = vec![0xdd; length];
                // SAFETY: SAFETY.md F16: same ranges as above.
                unsafe { copy_out(shared.0.as_mut_ptr().wrapping_add(at), &mut out) };
                assert_eq!(out, source);
            }
        }
    }

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        every_length_and_alignment(copy_out, copy_in);
    }

    /// The instructions depend on the distance.
    #[test]
    fn every_distance_between_source_and_target_is_copied() {
        #[repr(align(4096))]
        struct Pages([u8; 3 * 4096]);
        let mut data = Box::new(Pages([0; 3 * 4096]));
        data.0.iter_mut().zip((0..251).cycle()).for_each(|(byte, number)| *byte = number);
        let mut shared = Box::new(Pages([0; 3 * 4096]));
        for at in [0, 1, 16, 31, 63, 64, 65, 4032, 4095] {
            for length in [127, 128, 200, 4097, 8000] {
                shared.0.fill(0xee);
                let (source, range) = (&data.0[..length], at..at + length);
                // SAFETY: SAFETY.md F16: the range is within three pages of whole words.
                unsafe { copy_in(source, shared.0.as_mut_ptr().wrapping_add(at)) };
                assert!(shared.0[range.clone()] == *source, "{length} at {at}");
                let beside = shared.0[..at].iter().chain(&shared.0[range.end..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{length} at {at}");
                let mut out = Pages([0xdd; 3 * 4096]);
                let back = &mut out.0[..length];
                // SAFETY: SAFETY.md F16: same range as above.
                unsafe { copy_out(shared.0.as_mut_ptr().wrapping_add(at), back) };
                assert!(back == source, "{length} at {at}");
            }
        }
    }

    #[test]
    fn copies_by_words_do_the_same() {
        every_length_and_alignment(words::load, words::store);
    }

    /// Two threads each write one half of a word. Each half must keep the value that its thread
    /// wrote.
    #[test]
    fn a_part_of_a_word_leaves_the_rest_to_others() {
        let rounds = if cfg!(miri) { 20 } else { 20_000_u32 };
        let mut shared = Shared([0; 400]);
        let first = &AtomicPtr::new(shared.0.as_mut_ptr());
        std::thread::scope(|scope| {
            for half in [0, 4] {
                scope.spawn(move || {
                    let place = first.load(Ordering::Relaxed).wrapping_add(half);
                    for round in 0..rounds {
                        let mut seen = [0; 4];
                        // SAFETY: SAFETY.md F16: the bytes are within the first word, which both
                        // threads access only with these functions.
                        unsafe { words::store(&round.to_ne_bytes(), place) };
                        // SAFETY: SAFETY.md F16: same access as above.
                        unsafe { words::load(place, &mut seen) };
                        assert_eq!(u32::from_ne_bytes(seen), round);
                    }
                });
            }
        });
    }
}
