//! Moves by relaxed atomics: for miri, which knows no assembly, and for architectures without a file of
//! their own.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::moves::Moves;

#[derive(Debug)]
pub(super) struct Portable;

/// Moves a word: by one load if its source is aligned, by one store if its sink is, else by bytes.
macro_rules! move_word {
    ($name:ident, $atomic:ty, $word:ty) => {
        unsafe fn $name(source: *const u8, sink: *mut u8) {
            const SIZE: usize = size_of::<$word>();
            if cfg!(miri) {
                // It does not take atomics that overlap in part.
                // SAFETY: the word's bytes of both, which the contract gives.
                return unsafe { std::ptr::copy(source, sink, SIZE) };
            }
            let word = if source.addr().is_multiple_of(SIZE) {
                // SAFETY: aligned, and valid for reads by the contract; it is only loaded from.
                let from = unsafe { <$atomic>::from_ptr(source.cast_mut().cast()) };
                from.load(Ordering::Relaxed).to_ne_bytes()
            } else {
                std::array::from_fn(|at| {
                    // SAFETY: one of the word's bytes.
                    unsafe { load(source.wrapping_add(at)) }
                })
            };
            if sink.addr().is_multiple_of(SIZE) {
                // SAFETY: aligned, and valid for writes by the contract.
                let to = unsafe { <$atomic>::from_ptr(sink.cast()) };
                return to.store(<$word>::from_ne_bytes(word), Ordering::Relaxed);
            }
            for (at, byte) in word.into_iter().enumerate() {
                // SAFETY: one of the word's bytes.
                unsafe { store(sink.wrapping_add(at), byte) };
            }
        }
    };
}

/// # Safety
///
/// `source` must be valid for reads.
unsafe fn load(source: *const u8) -> u8 {
    // SAFETY: valid by this function's contract, and only loaded from.
    unsafe { AtomicU8::from_ptr(source.cast_mut()) }.load(Ordering::Relaxed)
}

/// # Safety
///
/// `sink` must be valid for writes.
unsafe fn store(sink: *mut u8, byte: u8) {
    // SAFETY: valid by this function's contract.
    unsafe { AtomicU8::from_ptr(sink) }.store(byte, Ordering::Relaxed);
}

// SAFETY: each function moves the bytes at the two places and no others.
unsafe impl Moves for Portable {
    move_word!(move_1, AtomicU8, u8);
    move_word!(move_2, AtomicU16, u16);
    move_word!(move_4, AtomicU32, u32);
    move_word!(move_8, AtomicU64, u64);

    unsafe fn move_16(source: *const u8, sink: *mut u8) {
        for at in [0, 8] {
            // SAFETY: one half of both.
            unsafe { Self::move_8(source.wrapping_add(at), sink.wrapping_add(at)) };
        }
    }

    unsafe fn move_64(source: *const u8, sink: *mut u8) {
        for at in [0, 16, 32, 48] {
            // SAFETY: a quarter of both.
            unsafe { Self::move_16(source.wrapping_add(at), sink.wrapping_add(at)) };
        }
    }
}
