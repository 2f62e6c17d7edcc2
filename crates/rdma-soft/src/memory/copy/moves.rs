//! The order in which a copy moves its bytes, which is the same on each architecture.
#![allow(unsafe_code)]

use std::sync::atomic::{Ordering, fence};

/// The instructions of an architecture. Each is opaque to the compiler, which assumes neither what the instruction
/// reads nor that it writes only once.
///
/// # Safety
///
/// A move of `n` bytes reads only the `n` bytes at its source, and writes only the `n` bytes at its sink. Neither
/// address has to be aligned. A move of 1, 2, 4 or 8 bytes is a single store if its sink is aligned to its size.
pub(super) unsafe trait Moves {
    /// # Safety
    ///
    /// `source` must be valid for reads and `sink` for writes of 1 byte; the other moves require as many bytes as their
    /// names state.
    unsafe fn move_1(source: *const u8, sink: *mut u8);
    /// # Safety
    ///
    /// See [`Moves::move_1`].
    unsafe fn move_2(source: *const u8, sink: *mut u8);
    /// # Safety
    ///
    /// See [`Moves::move_1`].
    unsafe fn move_4(source: *const u8, sink: *mut u8);
    /// # Safety
    ///
    /// See [`Moves::move_1`].
    unsafe fn move_8(source: *const u8, sink: *mut u8);
    /// # Safety
    ///
    /// See [`Moves::move_1`].
    unsafe fn move_16(source: *const u8, sink: *mut u8);
    /// # Safety
    ///
    /// See [`Moves::move_1`].
    unsafe fn move_64(source: *const u8, sink: *mut u8);

    /// Moves 64 bytes or more, from low to high addresses. Some bytes are moved twice.
    ///
    /// # Safety
    ///
    /// `source` must be valid for reads and `sink` for writes of `length` bytes, at least 64.
    #[inline]
    unsafe fn move_many(source: *const u8, sink: *mut u8, length: usize) {
        // SAFETY: by this function's contract.
        unsafe { move_lines::<Self>(source, sink, length) };
    }
}

/// Moves several pieces of the ranges `$source` and `$sink`, in this order.
macro_rules! pieces {
    ($source:ident, $sink:ident: $($move:ident at $offset:expr),+) => {{$(
        let (from, to) = ($source.wrapping_add($offset), $sink.wrapping_add($offset));
        // SAFETY: the piece lies inside both ranges because its offset plus its size is at most the length
        // (SAFETY.md F10).
        unsafe { M::$move(from, to) };
    )+}};
}

/// Copies from low to high addresses. The end of the range is its last 1, 2, 4 or 8 bytes, whichever is the longest
/// word that fits. It is written by a single store after all others, and no earlier store touches it.
///
/// So a program that polls the end of a message with acquire ordering also sees the rest of the message. Programs need
/// this ordering on hardware, too.
///
/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes.
#[inline(always)]
pub(super) unsafe fn copy<M: Moves>(source: *const u8, sink: *mut u8, length: usize) {
    if length > 8 {
        // SAFETY: this is the beginning of both ranges (SAFETY.md F10).
        unsafe { copy_body::<M>(source, sink, length - 8) };
    }
    // Everything written earlier, by this copy and by previous ones, becomes visible before the end does.
    fence(Ordering::Release);
    if length >= 8 {
        pieces!(source, sink: move_8 at length - 8);
    } else {
        // SAFETY: by this function's contract.
        unsafe { copy_few::<M>(source, sink, length) };
    }
}

/// Copies fewer than eight bytes.
///
/// # Safety
///
/// See [`copy`].
#[inline(never)]
unsafe fn copy_few<M: Moves>(source: *const u8, sink: *mut u8, length: usize) {
    let last = match length {
        0 => return,
        1 => 1,
        2..4 => 2,
        _ => 4,
    };
    if length > last {
        // SAFETY: this is the beginning of both ranges (SAFETY.md F10).
        unsafe { copy_body::<M>(source, sink, length - last) };
        fence(Ordering::Release);
    }
    match last {
        1 => pieces!(source, sink: move_1 at 0),
        2 => pieces!(source, sink: move_2 at length - 2),
        _ => pieces!(source, sink: move_4 at length - 4),
    }
}

/// Copies all bytes before the end, and no others. A remainder smaller than a piece is moved by a piece that overlaps
/// the previous one.
///
/// # Safety
///
/// See [`copy`].
#[inline(never)]
unsafe fn copy_body<M: Moves>(source: *const u8, sink: *mut u8, length: usize) {
    match length {
        0 => {}
        1 => pieces!(source, sink: move_1 at 0),
        2..4 => pieces!(source, sink: move_2 at 0, move_2 at length - 2),
        4..8 => pieces!(source, sink: move_4 at 0, move_4 at length - 4),
        8..=16 => pieces!(source, sink: move_8 at 0, move_8 at length - 8),
        17..=32 => pieces!(source, sink: move_16 at 0, move_16 at length - 16),
        33..64 => pieces!(source, sink: move_16 at 0, move_16 at 16,
            move_16 at length - 32, move_16 at length - 16),
        // SAFETY: by this function's contract; the length is at least 64 (SAFETY.md F10).
        _ => unsafe { M::move_many(source, sink, length) },
    }
}

/// Moves lines of 64 bytes. The last line ends where the range does, so it may overlap the previous one.
///
/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes, at least 64.
#[inline]
pub(super) unsafe fn move_lines<M: Moves + ?Sized>(
    source: *const u8,
    sink: *mut u8,
    length: usize,
) {
    let mut offset = 0;
    while offset + 64 < length {
        pieces!(source, sink: move_64 at offset);
        offset += 64;
    }
    pieces!(source, sink: move_64 at length - 64);
}
