//! The order in which a copy moves its bytes, the same on each architecture.
#![allow(unsafe_code)]

use std::sync::atomic::{Ordering, fence};

/// The instructions of an architecture, each opaque to the compiler: it assumes neither what they read nor that they
/// write once.
///
/// # Safety
///
/// A move of `n` bytes reads only the `n` at its source, and writes only the `n` at its sink. Neither place has to be
/// aligned; one of 1, 2, 4 or 8 bytes with a sink aligned to its size is a single store.
pub(super) unsafe trait Moves {
    /// # Safety
    ///
    /// `source` must be valid for reads and `sink` for writes of 1 byte, and so on for the others.
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

    /// Moves 64 bytes or more, upwards; some of them twice.
    ///
    /// # Safety
    ///
    /// `source` must be valid for reads and `sink` for writes of `length` bytes, at least 64.
    #[inline]
    unsafe fn move_many(source: *const u8, sink: *mut u8, length: usize) {
        // SAFETY: this function's contract.
        unsafe { move_lines::<Self>(source, sink, length) };
    }
}

/// Moves several pieces of the two ranges that are in scope, in this order.
macro_rules! pieces {
    ($source:ident, $sink:ident: $($move:ident at $offset:expr),+) => {{$(
        let (from, to) = ($source.wrapping_add($offset), $sink.wrapping_add($offset));
        // SAFETY: the piece lies inside both ranges: its offset and its size together are no more than the
        // length (SAFETY.md F10).
        unsafe { M::$move(from, to) };
    )+}};
}

/// Copies upwards. The end is one store after all others, of the longest word of 1, 2, 4 or 8 bytes that the range
/// holds. No earlier store touches any of it.
///
/// A program that polls the end of a message therefore finds the rest there, if it reads the end with acquire ordering.
/// Hardware requires this, too.
///
/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes.
#[inline(always)]
pub(super) unsafe fn copy<M: Moves>(source: *const u8, sink: *mut u8, length: usize) {
    if length > 8 {
        // SAFETY: the beginning of both ranges (SAFETY.md F10).
        unsafe { copy_body::<M>(source, sink, length - 8) };
    }
    // Everything written before, by this copy and by earlier ones, becomes visible before the end does.
    fence(Ordering::Release);
    if length >= 8 {
        pieces!(source, sink: move_8 at length - 8);
    } else {
        // SAFETY: this function's contract.
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
        // SAFETY: the beginning of both ranges (SAFETY.md F10).
        unsafe { copy_body::<M>(source, sink, length - last) };
        fence(Ordering::Release);
    }
    match last {
        1 => pieces!(source, sink: move_1 at 0),
        2 => pieces!(source, sink: move_2 at length - 2),
        _ => pieces!(source, sink: move_4 at length - 4),
    }
}

/// Copies the bytes before the end, and no others. The rest after whole pieces is moved by a piece that overlaps the
/// one before it.
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
        // SAFETY: this function's contract, and there are at least 64 (SAFETY.md F10).
        _ => unsafe { M::move_many(source, sink, length) },
    }
}

/// Moves lines of 64 bytes; the last one ends where the range does.
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
