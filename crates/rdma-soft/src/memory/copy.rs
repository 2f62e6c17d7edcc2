//! The only module in which the device accesses user memory.
//!
//! Two sides may access the same bytes at once, as with DMA. So a copy forms no reference to these bytes, and is
//! written in assembly, which the compiler treats as opaque. It runs from low to high addresses. Its end, at most eight
//! bytes, is written by one store after all others, for programs that poll the end of a message. An aligned word of
//! eight bytes is written by a single store, unless its source crosses the end of a ring between two processes. Memory
//! that may have been unmapped is copied by the kernel instead, where possible (`reach`). `--cfg rdma_visible_copies`
//! replaces the assembly with a copy that AddressSanitizer intercepts.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod aarch64;
#[cfg(miri)]
mod interpreted;
mod moves;
mod reach;
#[cfg(test)]
mod tests;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(miri)))]
use aarch64::Native;
#[cfg(miri)]
use interpreted::Native;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::Native;

pub(crate) use reach::{Fault, Reach};

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// A range of process memory that the device may access. If it was found by a key, it is not used after the release of
/// the queue pair's lock under which it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    address: u64,
    length: u64,
    /// Whether the range is certainly mapped until the segment's last use.
    mapped: bool,
}

impl Segment {
    /// Returns a range that is mapped until its last use.
    ///
    /// # Safety
    ///
    /// The range must be valid until the segment's last use, for the access that the segment is used for. Its
    /// provenance must have been exposed.
    #[inline]
    pub(crate) unsafe fn new(address: u64, length: u64) -> Self {
        Self { address, length, mapped: true }
    }

    /// Returns a range of a region, which may have been unmapped unless `mapped` is set.
    ///
    /// # Safety
    ///
    /// If `mapped` is set, or the segment is used with [`Reach::Mapped`], the contract of [`new`](Self::new) applies.
    /// Uses with [`Reach::MayBeGone`] require less: the range need not be mapped, but any memory mapped there must be
    /// valid (SAFETY.md F8).
    #[inline]
    pub(crate) unsafe fn of_region(address: u64, length: u64, mapped: bool) -> Self {
        Self { address, length, mapped }
    }

    #[inline]
    pub(crate) fn length(self) -> u64 {
        self.length
    }

    /// Returns the range without its first `bytes` bytes.
    #[inline]
    pub(crate) fn skip(self, bytes: u64) -> Self {
        let skipped = bytes.min(self.length);
        Self { address: self.address + skipped, length: self.length - skipped, ..self }
    }

    /// Returns true if the range has at least this many bytes, and is certainly mapped.
    #[inline]
    fn is_mapped_to(self, bytes: u64) -> bool {
        self.mapped && bytes <= self.length
    }
}

/// The data of a message, or of a part of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Data<'a> {
    /// The memory of the whole message, as the sender in this process holds it.
    Segments(&'a [Segment]),
    /// The memory of one part.
    Part(&'a [Segment]),
    /// The bytes of one part, in the form that packets carry.
    Bytes(&'a [u8]),
}

/// Eight aligned bytes of process memory, for the device's atomics. The device uses the processor's atomic
/// instructions, so its atomics are atomic with each other and with the program's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AtomicWord(Segment);

impl AtomicWord {
    /// Returns `None` unless the segment is eight bytes long and aligned in this process.
    pub(crate) fn at(segment: Segment) -> Option<Self> {
        let fits = segment.length == 8 && segment.address.is_multiple_of(8);
        fits.then_some(Self(segment))
    }

    fn word(&self) -> &AtomicU64 {
        // The device is 64-bit only (rdma-sys refuses other targets), so addresses fit.
        #[allow(clippy::cast_possible_truncation)]
        let place = with_exposed_provenance_mut::<u64>(self.0.address as usize);
        // SAFETY: the word is aligned (`at`), and its provenance was exposed (SAFETY.md F7). It is valid for reads and
        // writes: for a mapped segment, and with `Reach::Mapped`, by the contracts of `Segment`. Otherwise
        // `Reach::finds` has checked that the word is mapped, readable and writable; where it cannot check, the program
        // promises this (F8). The word stays so while it is used: it is not unmapped and keeps both rights (F8), and it
        // stays registered (F14). The device's other copies are not Rust accesses. The program's own concurrent
        // accesses are atomics of this width (F10).
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Stores `swap` if the word equals `compare`, and returns the previous value.
    pub(crate) fn compare_and_swap(self, compare: u64, swap: u64) -> u64 {
        let done = self.word().compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        done.unwrap_or_else(|found| found)
    }

    /// Adds to the word, and returns the previous value.
    pub(crate) fn fetch_and_add(self, add: u64) -> u64 {
        self.word().fetch_add(add, Ordering::AcqRel)
    }
}

/// Copies the bytes `from..to` of the concatenated `source` to the same positions in `sink`.
///
/// The copy ends where the shorter of the two lists ends.
#[inline(always)]
pub(crate) fn transfer(source: &[Segment], sink: &[Segment], from: u64, to: u64) {
    match (source, sink) {
        ([source], [sink]) if from == 0 => {
            copy_segment(source.address, sink.address, to.min(source.length).min(sink.length));
        }
        _ => transfer_pieces(source, sink, from, to),
    }
}

#[inline(never)]
fn transfer_pieces(source: &[Segment], sink: &[Segment], from: u64, to: u64) {
    if let ([source, ..], [sink, ..]) = (source, sink)
        && from == 0
        && to <= source.length.min(sink.length)
    {
        return copy_segment(source.address, sink.address, to);
    }
    let (sources, sinks) = (Cursor::at(source, from), Cursor::at(sink, from));
    transfer_mapped(sources, sinks, to.saturating_sub(from));
}

fn transfer_mapped(mut sources: Cursor<'_>, mut sinks: Cursor<'_>, mut left: u64) {
    while let Some(piece) = Piece::next(&mut sources, &mut sinks, left) {
        copy_segment(piece.source, piece.sink, piece.length);
        left -= piece.length;
    }
}

/// Bytes that are contiguous on both sides of a copy.
#[derive(Debug, Clone, Copy)]
struct Piece {
    source: u64,
    sink: u64,
    length: u64,
}

impl Piece {
    /// Takes up to `most` bytes from both lists. Returns `None` if `most` is 0 or one of the lists is exhausted.
    fn next(sources: &mut Cursor<'_>, sinks: &mut Cursor<'_>, most: u64) -> Option<Self> {
        if most == 0 {
            return None;
        }
        let (source, sink) = (sources.rest()?, sinks.rest()?);
        let length = most.min(source.length).min(sink.length);
        sources.advance(length);
        sinks.advance(length);
        Some(Self { source: source.address, sink: sink.address, length })
    }
}

/// A position in a list of segments.
struct Cursor<'a> {
    segments: std::slice::Iter<'a, Segment>,
    rest: Option<Segment>,
}

impl<'a> Cursor<'a> {
    fn at(segments: &'a [Segment], offset: u64) -> Self {
        let mut segments = segments.iter();
        let rest = segments.next().copied();
        let mut cursor = Self { segments, rest };
        cursor.advance(offset);
        cursor
    }

    /// Returns a cursor over `first` and then `segments`.
    fn chain(first: Segment, segments: &'a [Segment]) -> Self {
        Self { segments: segments.iter(), rest: Some(first) }
    }

    /// Returns the number of bytes left.
    fn length(&self) -> u64 {
        let behind = self.segments.as_slice().iter().map(|segment| segment.length).sum::<u64>();
        self.rest.map_or(0, |rest| rest.length) + behind
    }

    /// Returns true if everything left is certainly mapped.
    fn is_mapped(&self) -> bool {
        self.rest.is_none_or(|rest| rest.mapped)
            && self.segments.as_slice().iter().all(|s| s.mapped)
    }

    /// Skips empty segments, and returns what is left of the next one. Returns `None` at the end of the list.
    fn rest(&mut self) -> Option<Segment> {
        while self.rest.is_some_and(|rest| rest.length == 0) {
            self.rest = self.segments.next().copied();
        }
        self.rest
    }

    fn advance(&mut self, mut by: u64) {
        while let Some(rest) = self.rest() {
            let step = by.min(rest.length);
            self.rest = Some(rest.skip(step));
            by -= step;
            if by == 0 {
                return;
            }
        }
    }
}

#[inline(always)]
fn copy_segment(source: u64, sink: u64, length: u64) {
    let (source, sink, length) = pointers(source, sink, length);
    // SAFETY: callers are in this module, and pass parts of segments or their own scratch memory. Both ranges are valid
    // by the contracts of `Segment`. Where memory may be gone, this runs only if the kernel does not copy for us
    // (SAFETY.md F7, F8). No Rust reference to the ranges is formed here (F10). An empty range is always valid.
    unsafe { device_copy(source, sink, length) }
}

#[inline]
fn pointers(source: u64, sink: u64, length: u64) -> (*const u8, *mut u8, usize) {
    // The device is 64-bit only (rdma-sys refuses other targets), so addresses fit.
    #[allow(clippy::cast_possible_truncation)]
    let (source, sink, length) = (source as usize, sink as usize, length as usize);
    (with_exposed_provenance(source), with_exposed_provenance_mut(sink), length)
}

/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes.
// AddressSanitizer's reports name this function, also in builds without debug information.
#[cfg_attr(rdma_visible_copies, inline(never))]
#[cfg_attr(not(rdma_visible_copies), inline(always))]
unsafe fn device_copy(source: *const u8, sink: *mut u8, length: usize) {
    if cfg!(rdma_visible_copies) {
        // SAFETY: by this function's contract; `copy` allows overlap. A plain copy is used here because
        // AddressSanitizer can see it (SAFETY.md F10).
        unsafe { std::ptr::copy(source, sink, length) };
        // So the copy is not a tail call, and this function has a frame in the report.
        std::hint::black_box(());
    } else {
        // SAFETY: by this function's contract (SAFETY.md F10).
        unsafe { moves::copy::<Native>(source, sink, length) }
    }
}
