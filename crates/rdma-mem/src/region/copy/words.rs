//! Copies with relaxed 8-byte atomics, for architectures without the assembly, and for Miri, which
//! can check them.
//!
//! Atomic accesses of different widths to the same bytes would race, with each other and with the
//! words that a region lends. Therefore these functions load and store whole aligned words of
//! shared memory, even if the copy needs only a part of a word.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the aligned word that begins `skip` bytes before `place`.
///
/// # Safety
/// The word is valid for reads and writes for `'a`. Other code accesses its memory only with
/// atomics of this width, or as a device.
unsafe fn word<'a>(place: *mut u8, skip: usize) -> &'a AtomicU64 {
    let word = place.wrapping_sub(skip).cast();
    // SAFETY: SAFETY.md F16: the word is aligned, because `skip` is the byte's offset in it. By
    // this function's contract it is valid and accessed in one width only.
    unsafe { AtomicU64::from_ptr(word) }
}

/// Copies shared memory into `out`.
///
/// # Safety
/// The contract of [`copy_out`](super::copy_out) applies.
pub(super) unsafe fn load(mut source: *mut u8, mut out: &mut [u8]) {
    while !out.is_empty() {
        let skip = source.addr() % 8;
        // SAFETY: SAFETY.md F16: the word contains one of the bytes, so this function's contract
        // covers it.
        let bytes = unsafe { word(source, skip) }.load(Relaxed).to_ne_bytes();
        let taken = (8 - skip).min(out.len());
        let (now, later) = out.split_at_mut(taken);
        now.copy_from_slice(&bytes[skip..skip + taken]);
        (source, out) = (source.wrapping_add(taken), later);
    }
}

/// Copies `data` into shared memory. Other bytes in the same words are not affected, even if other
/// threads change them at the same time.
///
/// # Safety
/// The contract of [`copy_in`](super::copy_in) applies.
pub(super) unsafe fn store(mut data: &[u8], mut target: *mut u8) {
    while !data.is_empty() {
        let skip = target.addr() % 8;
        let (now, later) = data.split_at((8 - skip).min(data.len()));
        // SAFETY: SAFETY.md F16: the word contains one of the bytes, so this function's contract
        // covers it.
        let word = unsafe { word(target, skip) };
        if let Ok(whole) = now.try_into() {
            word.store(u64::from_ne_bytes(whole), Relaxed);
        } else {
            let put = |old: u64| {
                let mut bytes = old.to_ne_bytes();
                bytes[skip..skip + now.len()].copy_from_slice(now);
                Some(u64::from_ne_bytes(bytes))
            };
            // `put` always returns `Some`, so this cannot fail.
            let _ = word.fetch_update(Relaxed, Relaxed, put);
        }
        (target, data) = (target.wrapping_add(now.len()), later);
    }
}
