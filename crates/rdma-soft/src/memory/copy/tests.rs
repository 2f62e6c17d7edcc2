//! The copy on each architecture: the bytes that it moves, and their order.
#![allow(unsafe_code)]

#[cfg(not(miri))]
use super::moves::{Moves, copy};
use super::reach::Reach;
use super::*;
use crate::counters::rare::Rare;

#[cfg(not(any(miri, rdma_visible_copies)))]
mod gone;
#[cfg(not(any(miri, rdma_visible_copies)))]
mod order;

/// Moves bytes as on a processor without AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
struct Sse;

#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! as_native {
    ($($name:ident),+) => {$(
        unsafe fn $name(source: *const u8, sink: *mut u8) {
            // SAFETY: the contract is that of `Native`.
            unsafe { Native::$name(source, sink) };
        }
    )+};
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
// SAFETY: these are `Native`'s functions.
unsafe impl Moves for Sse {
    as_native!(move_1, move_2, move_4, move_8, move_16, move_64);

    unsafe fn move_many(source: *const u8, sink: *mut u8, length: usize) {
        // SAFETY: the contract is that of `move_many_by_sse`.
        unsafe { x86_64::move_many_by_sse(source, sink, length) };
    }
}

/// Counts the calls to the kernel.
static CALLS: Rare = Rare::new();
const LATER: Reach = Reach::MayBeGone(&CALLS);

fn segment(memory: &mut [u8]) -> Segment {
    // SAFETY: the test owns this memory exclusively, and it outlives the segment.
    unsafe { Segment::new(memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u64) }
}

fn numbered(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

/// Returns all short lengths, and longer ones on both sides of the limits at which the copy changes its method.
fn lengths() -> impl Iterator<Item = usize> {
    let long = [511, 512, 2047, 2056, 4096, 32 << 10, (32 << 10) + 8, (32 << 10) + 9, 65537];
    // Under Miri, each byte takes time.
    let is_chosen =
        |&length: &usize| !cfg!(miri) || length < 20 || [35, 70, 75, 137].contains(&length);
    (0..300).chain(long).filter(is_chosen)
}

fn every_length_and_alignment(copy: impl Fn(&mut [u8], &mut [u8])) {
    const ROOM: usize = 64;
    let offsets = [(0, 0), (1, 0), (0, 1), (3, 5), (8, 4), (4, 8), (16, 63), (33, 2)];
    for length in lengths() {
        for (from, to) in offsets {
            let mut source = numbered(length + ROOM);
            let mut sink = vec![0xee; length + 2 * ROOM];
            copy(&mut source[from..from + length], &mut sink[to..to + length]);
            assert_eq!(sink[to..to + length], source[from..from + length], "{length} {from} {to}");
            assert!(sink[..to].iter().chain(&sink[to + length..]).all(|&byte| byte == 0xee));
        }
    }
}

/// The instructions depend on the distance between source and sink, modulo the page size.
#[cfg(not(miri))]
fn every_distance(copy: impl Fn(&mut [u8], &mut [u8])) {
    #[repr(C, align(4096))]
    struct Pages([u8; 10 * 4096]);
    let [mut source, mut sink] = [(); 2].map(|()| Box::new(Pages([0; 10 * 4096])));
    source.0.copy_from_slice(&numbered(10 * 4096));
    for to in [0, 1, 16, 31, 63, 64, 4095] {
        for length in [128, 2056, 33_001] {
            sink.0.fill(0xee);
            copy(&mut source.0[..length], &mut sink.0[to..to + length]);
            assert!(sink.0[to..to + length] == source.0[..length], "{length} {to}");
            let beside = [&sink.0[..to], &sink.0[to + length..]].concat();
            assert!(beside.iter().all(|&byte| byte == 0xee), "{length} {to}");
        }
    }
}

#[test]
fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
    let copy = |source: &mut [u8], sink: &mut [u8]| {
        let length = source.len() as u64;
        transfer(&[segment(source)], &[segment(sink)], 0, length);
    };
    every_length_and_alignment(copy);
    #[cfg(not(miri))]
    every_distance(copy);
}

#[test]
fn copies_of_memory_that_may_be_gone_do_the_same() {
    every_length_and_alignment(|source, sink| {
        let length = source.len() as u64;
        let [source, sink] = [source, sink].map(|side| Segment { mapped: false, ..segment(side) });
        assert_eq!(LATER.transfer(&[source], &[sink], 0, length), Ok(()));
    });
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn a_processor_without_avx_does_the_same() {
    let copy = |source: &mut [u8], sink: &mut [u8]| {
        // SAFETY: both slices are `source.len()` bytes long.
        unsafe { copy::<Sse>(source.as_ptr(), sink.as_mut_ptr(), source.len()) };
    };
    every_length_and_alignment(copy);
    every_distance(copy);
}

#[test]
fn lists_are_copied_as_if_joined_from_any_offset() {
    let mut whole = numbered(100);
    for (from, to) in [(0_usize, 100_usize), (0, 50), (50, 100), (33, 34), (99, 100), (100, 100)] {
        let mut sink = [0xee; 100];
        let (a, rest) = whole.split_at_mut(10);
        let (b, c) = rest.split_at_mut(0);
        let source = [segment(a), segment(b), segment(c)];
        let (d, e) = sink.split_at_mut(64);
        transfer(&source, &[segment(d), segment(e)], from as u64, to as u64);
        assert_eq!(sink[from..to], whole[from..to]);
        assert!(sink[..from].iter().chain(&sink[to..]).all(|&b| b == 0xee));
        // A single segment on each side is handled separately.
        let mut alone = [0xee; 100];
        transfer(&[segment(&mut whole)], &[segment(&mut alone)], from as u64, to as u64);
        assert_eq!(alone, sink);
    }
}

#[test]
fn a_shorter_list_ends_the_copy() {
    let (mut source, mut sink) = (numbered(10), vec![0u8; 4]);
    transfer(&[segment(&mut source)], &[segment(&mut sink)], 0, 10);
    assert_eq!(sink, [0, 1, 2, 3]);
}
