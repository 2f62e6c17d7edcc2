//! The one place where the device touches user memory.
//!
//! Two sides may touch the same bytes at once, as with DMA: no reference to them is ever formed, and
//! on x86-64 the copy is assembly, which the compiler treats as opaque. It runs upwards, and the last
//! eight bytes are one store after all others, for programs that poll the end of a message; an aligned
//! word of eight bytes is a single store. `--cfg rdma_visible_copies` replaces it by the copy that
//! AddressSanitizer intercepts.
#![allow(unsafe_code)]

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// A range of process memory that the device may touch while its owner's locks are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    address: u64,
    length: u64,
}

impl Segment {
    /// # Safety
    ///
    /// The range must be valid for the access that the segment is used for until the segment is
    /// dropped or forgotten, and its provenance must have been exposed.
    #[inline]
    pub(crate) unsafe fn new(address: u64, length: u64) -> Self {
        Self { address, length }
    }

    #[inline]
    pub(crate) fn length(self) -> u64 {
        self.length
    }
}

/// Eight aligned bytes of process memory, for the device's atomics, which are the processor's: atomic
/// with each other, and with those of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AtomicWord(u64);

impl AtomicWord {
    /// `None` unless the segment is eight bytes and aligned here.
    pub(crate) fn at(segment: Segment) -> Option<Self> {
        let fits = segment.length == 8 && segment.address.is_multiple_of(8);
        fits.then_some(Self(segment.address))
    }

    fn word(&self) -> &AtomicU64 {
        // The device is 64-bit only (rdma-sys refuses other targets), so addresses fit.
        #[allow(clippy::cast_possible_truncation)]
        let place = with_exposed_provenance_mut::<u64>(self.0 as usize);
        // SAFETY: valid by the contract of `Segment::new` (SAFETY.md F7, F8) while the word is used,
        // and aligned; an atomic is what the program's own accesses at the same time must be (F10).
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Says what was there; if that is `compare`, `swap` is there now.
    pub(crate) fn compare_and_swap(self, compare: u64, swap: u64) -> u64 {
        let done = self.word().compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        done.unwrap_or_else(|found| found)
    }

    /// Says what was there.
    pub(crate) fn fetch_and_add(self, add: u64) -> u64 {
        self.word().fetch_add(add, Ordering::AcqRel)
    }
}

/// Copies a number, in the order of this machine's bytes, to a list of segments.
pub(crate) fn deliver(number: u64, sink: &[Segment]) {
    deliver_bytes(&number.to_ne_bytes(), sink);
}

/// Copies bytes of the device's own to the beginning of a list of segments.
pub(crate) fn deliver_bytes(bytes: &[u8], sink: &[Segment]) {
    let (address, length) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
    transfer(&[Segment { address, length }], sink, 0, length);
}

/// Copies the first `length` bytes of the concatenation of `source` into that of `sink`, behind the
/// first `lead` bytes there.
pub(crate) fn transfer_behind(source: &[Segment], sink: &[Segment], lead: u64, length: u64) {
    transfer_cursors(Cursor::at(source, 0), Cursor::at(sink, lead), length);
}

/// Copies the bytes `from..to` of the concatenation of `source` to the same places in `sink`.
///
/// Where one of them ends, the copy ends.
#[inline]
pub(crate) fn transfer(source: &[Segment], sink: &[Segment], from: u64, to: u64) {
    match (source, sink) {
        ([source], [sink]) if from == 0 => {
            copy_segment(source.address, sink.address, to.min(source.length).min(sink.length));
        }
        _ => transfer_pieces(source, sink, from, to),
    }
}

fn transfer_pieces(source: &[Segment], sink: &[Segment], from: u64, to: u64) {
    let (sources, sinks) = (Cursor::at(source, from), Cursor::at(sink, from));
    transfer_cursors(sources, sinks, to.saturating_sub(from));
}

fn transfer_cursors(mut sources: Cursor<'_>, mut sinks: Cursor<'_>, mut left: u64) {
    while left > 0 {
        let (Some(source), Some(sink)) = (sources.rest(), sinks.rest()) else { return };
        let piece = left.min(source.length).min(sink.length);
        copy_segment(source.address, sink.address, piece);
        sources.advance(piece);
        sinks.advance(piece);
        left -= piece;
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

    /// What is left of the present segment; never empty.
    fn rest(&mut self) -> Option<Segment> {
        while self.rest.is_some_and(|rest| rest.length == 0) {
            self.rest = self.segments.next().copied();
        }
        self.rest
    }

    fn advance(&mut self, mut by: u64) {
        while let Some(rest) = self.rest() {
            let step = by.min(rest.length);
            self.rest = Some(Segment { address: rest.address + step, length: rest.length - step });
            by -= step;
            if by == 0 {
                return;
            }
        }
    }
}

#[inline]
fn copy_segment(source: u64, sink: u64, length: u64) {
    // The device is 64-bit only (rdma-sys refuses other targets), so addresses fit.
    #[allow(clippy::cast_possible_truncation)]
    let (source, sink, length) = (source as usize, sink as usize, length as usize);
    let (source, sink) =
        (with_exposed_provenance::<u8>(source), with_exposed_provenance_mut::<u8>(sink));
    // SAFETY: both ranges are valid by the contract of `Segment::new` (SAFETY.md F7, F8), and no Rust
    // reference to them is formed here (F10).
    unsafe { device_copy(source, sink, length) }
}

/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes.
#[cfg(any(rdma_visible_copies, miri))]
#[inline]
unsafe fn device_copy(source: *const u8, sink: *mut u8, length: usize) {
    // SAFETY: as this function's contract; `copy` allows overlap.
    unsafe { std::ptr::copy(source, sink, length) }
}

#[cfg(all(target_arch = "x86_64", not(any(rdma_visible_copies, miri))))]
use x86_64::device_copy;

#[cfg(all(target_arch = "x86_64", not(any(rdma_visible_copies, miri))))]
mod x86_64;

/// # Safety
///
/// `source` must be valid for reads and `sink` for writes of `length` bytes.
#[cfg(not(any(target_arch = "x86_64", rdma_visible_copies, miri)))]
#[inline]
unsafe fn device_copy(source: *const u8, sink: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    let word_wise = source.addr() % 8 == 0 && sink.addr() % 8 == 0;
    let words = if word_wise { length / 8 } else { 0 };
    for word in 0..words {
        // SAFETY: aligned and inside the source.
        let from = unsafe { AtomicU64::from_ptr(source.cast_mut().cast::<u64>().add(word)) };
        // SAFETY: aligned and inside the sink.
        let to = unsafe { AtomicU64::from_ptr(sink.cast::<u64>().add(word)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Release);
    }
    for byte in words * 8..length {
        // SAFETY: inside the source.
        let from = unsafe { AtomicU8::from_ptr(source.cast_mut().add(byte)) };
        // SAFETY: inside the sink.
        let to = unsafe { AtomicU8::from_ptr(sink.add(byte)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(memory: &mut [u8]) -> Segment {
        // SAFETY: exclusive memory of the test, which outlives the segment.
        unsafe { Segment::new(memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u64) }
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..=250).cycle().take(length).collect()
    }

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        for length in (0..300).chain([4096, 65537]) {
            for offset in 0..9 {
                let mut source = numbered(length + offset);
                let mut sink = vec![0xee; length + offset + 16];
                let from = segment(&mut source[offset..]);
                transfer(&[from], &[segment(&mut sink[offset..offset + length])], 0, length as u64);
                assert_eq!(sink[offset..offset + length], source[offset..], "{length} at {offset}");
                assert!(sink[..offset].iter().chain(&sink[offset + length..]).all(|&b| b == 0xee));
            }
        }
    }

    #[test]
    fn lists_are_copied_as_if_joined_from_any_offset() {
        let mut whole = numbered(100);
        for (from, to) in
            [(0_usize, 100_usize), (0, 50), (50, 100), (33, 34), (99, 100), (100, 100)]
        {
            let mut sink = [0xee; 100];
            let (a, rest) = whole.split_at_mut(10);
            let (b, c) = rest.split_at_mut(0);
            let source = [segment(a), segment(b), segment(c)];
            let (d, e) = sink.split_at_mut(64);
            transfer(&source, &[segment(d), segment(e)], from as u64, to as u64);
            assert_eq!(sink[from..to], whole[from..to]);
            assert!(sink[..from].iter().chain(&sink[to..]).all(|&b| b == 0xee));
        }
    }

    #[test]
    fn a_shorter_list_ends_the_copy() {
        let (mut source, mut sink) = (numbered(10), vec![0u8; 4]);
        transfer(&[segment(&mut source)], &[segment(&mut sink)], 0, 10);
        assert_eq!(sink, [0, 1, 2, 3]);
    }
}
