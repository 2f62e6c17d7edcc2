//! Copies of memory that is unmapped or lacks the necessary permission.

use std::{ptr, slice};

use crate::memory::copy::reach::{Fault, kernel_copies};

use super::*;

const UNWRITTEN: u8 = 0xee;

/// Three pages, which the test keeps mapped, so that no other thread maps anything there.
struct Pages {
    base: *mut u8,
}

fn page() -> usize {
    rustix::param::page_size()
}

impl Pages {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this creates a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), 3 * page(), access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let pages = Self { base: base.cast() };
        pages.bytes(0, 3 * page()).fill(UNWRITTEN);
        pages
    }

    fn protect(&self, number: usize, access: i32) {
        let start = self.base.wrapping_add(number * page());
        // SAFETY: the page belongs to this mapping.
        assert_eq!(unsafe { libc::mprotect(start.cast(), page(), access) }, 0);
    }

    #[allow(clippy::mut_from_ref)] // One at a time, in each of the tests.
    fn bytes(&self, from: usize, length: usize) -> &mut [u8] {
        assert!(from + length <= 3 * page());
        // SAFETY: the range lies within the mapping, and the test reads only the parts that it can access.
        unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(from), length) }
    }

    fn segment(&self, from: usize, length: usize) -> Segment {
        let address = self.base.wrapping_add(from).expose_provenance() as u64;
        // SAFETY: the range lies in this mapping, which outlives the segment.
        unsafe { Segment::of_region(address, length as u64, false) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, and nothing else uses it.
        unsafe { libc::munmap(self.base.cast(), 3 * page()) };
    }
}

/// Returns a range below the lowest address that the system maps (`vm.mmap_min_addr`).
fn nowhere(length: u64) -> Segment {
    // SAFETY: only copies that check whether the range is mapped use it.
    unsafe { Segment::of_region(4096, length, false) }
}

/// Returns false if there is nothing to test because an emulator lacks the calls. Job `valgrind` skips these tests.
fn is_guarded() -> bool {
    assert!(kernel_copies() || cfg!(not(target_arch = "x86_64")), "process_vm_readv is forbidden");
    kernel_copies()
}

fn copy(source: &[Segment], sink: &[Segment]) -> Result<(), Fault> {
    LATER.transfer(source, sink, 0, u64::MAX)
}

#[test]
fn unmapped_memory_is_a_fault_of_its_side() {
    if !is_guarded() {
        return;
    }
    let mut here = numbered(100);
    let here = segment(&mut here);
    for length in [1, 8, 9, 100] {
        assert_eq!(copy(&[nowhere(length)], &[here]), Err(Fault::Source), "{length}");
        assert_eq!(copy(&[here], &[nowhere(length)]), Err(Fault::Sink), "{length}");
    }
    assert_eq!(copy(&[nowhere(0)], &[here]), Ok(()), "no bytes need no memory");
    assert_eq!(LATER.deliver(5, &[nowhere(8)]), Err(Fault::Sink));
    assert_eq!(LATER.deliver_bytes(&[5; 40], &[nowhere(40)], 0), Err(Fault::Sink));
    let sink = [here, nowhere(8)];
    let data = || Data::Segments(slice::from_ref(&here));
    assert_eq!(LATER.deliver_behind(Some(&[1; 92]), data(), &sink, 16), Err(Fault::Sink));
    assert_eq!(LATER.deliver_behind::<100>(None, data(), &sink, 8), Err(Fault::Sink));
    let gone = nowhere(8);
    let data = Data::Segments(slice::from_ref(&gone));
    assert_eq!(LATER.deliver_behind(Some(&[1; 8]), data, &[here], 8), Err(Fault::Source));
}

#[test]
fn memory_without_the_permission_counts_as_unmapped() {
    if !is_guarded() {
        return;
    }
    let (pages, mut here) = (Pages::new(), numbered(100));
    let here = segment(&mut here);
    pages.protect(0, libc::PROT_NONE);
    assert_eq!(copy(&[pages.segment(0, 100)], &[here]), Err(Fault::Source));
    assert_eq!(copy(&[here], &[pages.segment(0, 100)]), Err(Fault::Sink));
    pages.protect(0, libc::PROT_READ);
    assert_eq!(copy(&[here], &[pages.segment(0, 100)]), Err(Fault::Sink));
    assert_eq!(copy(&[pages.segment(0, 100)], &[here]), Ok(()));
}

#[test]
fn bytes_before_the_hole_are_copied_and_none_after_it() {
    if !is_guarded() {
        return;
    }
    let (pages, mut whole) = (Pages::new(), numbered(3 * page() - 200));
    pages.protect(1, libc::PROT_NONE);
    let sink = pages.segment(100, whole.len());
    assert_eq!(copy(&[segment(&mut whole)], &[sink]), Err(Fault::Sink));
    assert_eq!(pages.bytes(100, page() - 100), &whole[..page() - 100]);
    assert!(pages.bytes(2 * page(), page()).iter().all(|&byte| byte == UNWRITTEN));

    let mut sink = vec![0; whole.len()];
    let source = pages.segment(100, whole.len());
    assert_eq!(copy(&[source], &[segment(&mut sink)]), Err(Fault::Source));
    assert_eq!(sink[..page() - 100], whole[..page() - 100]);
    assert!(sink[page() - 100..].iter().all(|&byte| byte == 0));
}

#[test]
fn the_end_is_not_written_before_everything_else() {
    if !is_guarded() {
        return;
    }
    let (pages, mut source) = (Pages::new(), numbered(500));
    pages.protect(1, libc::PROT_READ);
    // The last eight bytes can be written, but those before them cannot.
    let sink = pages.segment(2 * page() - 492, 500);
    assert_eq!(copy(&[segment(&mut source)], &[sink]), Err(Fault::Sink));
    assert_eq!(pages.bytes(2 * page(), 8), [UNWRITTEN; 8]);
}

#[test]
fn an_unmapped_second_segment_is_a_fault_after_the_first() {
    if !is_guarded() {
        return;
    }
    let (mut a, mut b) = (numbered(64), vec![0; 128]);
    assert_eq!(copy(&[segment(&mut a), nowhere(64)], &[segment(&mut b)]), Err(Fault::Source));
    assert_eq!(b[..64], a);
    let mut c = vec![0; 32];
    assert_eq!(copy(&[segment(&mut a)], &[segment(&mut c), nowhere(32)]), Err(Fault::Sink));
    assert_eq!(c, a[..32]);
}

/// The mapping of the kernel's clock is accessible, but its pages cannot be looked up. The same is true of memory
/// mapped from the files of some devices.
#[test]
fn memory_that_cannot_be_looked_up_is_copied() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let clock = maps.lines().find(|line| line.ends_with("[vvar]"));
    let start = clock.and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
    let (Some(start), true) = (start, is_guarded()) else { return };
    let pages = Pages::new();
    for length in [3, 8, 100] {
        pages.bytes(0, 200).fill(UNWRITTEN);
        // SAFETY: only a copy that checks whether the range is mapped uses it.
        let source = unsafe { Segment::of_region(start, length as u64, false) };
        assert_eq!(copy(&[source], &[pages.segment(0, length)]), Ok(()), "{length}");
        assert!(pages.bytes(0, length).iter().any(|&byte| byte != UNWRITTEN), "{length}");
        let rest = pages.bytes(length, 3 * page() - length);
        assert!(rest.iter().all(|&byte| byte == UNWRITTEN), "{length}");
    }
}

#[test]
fn a_word_is_found_where_it_can_be_read_and_written() {
    if !is_guarded() {
        return;
    }
    let pages = Pages::new();
    let word = |segment| AtomicWord::at(segment).unwrap();
    assert!(LATER.finds(word(pages.segment(8, 8))));
    assert!(!LATER.finds(word(nowhere(8))));
    pages.protect(0, libc::PROT_READ);
    assert!(!LATER.finds(word(pages.segment(8, 8))));
    assert!(!LATER.finds(word(pages.segment(page() - 8, 8))));
    assert!(LATER.finds(word(pages.segment(page(), 8))), "the next page");
    pages.protect(0, libc::PROT_READ | libc::PROT_WRITE);
    assert!(LATER.finds(word(pages.segment(8, 8))));
    assert_eq!(pages.bytes(0, 16), [UNWRITTEN; 16], "the check changed it");
    pages.protect(0, libc::PROT_NONE);
    assert!(!LATER.finds(word(pages.segment(8, 8))));
}

/// Returns a segment of the test's memory that the device does not know to be mapped.
fn unsure(memory: &mut [u8]) -> Segment {
    Segment { mapped: false, ..segment(memory) }
}

/// Returns the number of kernel calls that a copy makes.
fn calls(copy: impl FnOnce(Reach), count: &'static Rare) -> u64 {
    let before = count.get();
    copy(Reach::MayBeGone(count));
    count.get() - before
}

/// The number of kernel calls for one copy of more than eight bytes. Except on x86-64, the last eight bytes take a
/// separate call.
const ONE_COPY: u64 = if cfg!(target_arch = "x86_64") { 1 } else { 2 };

#[test]
fn lists_of_any_shape_are_copied_by_one_call() {
    static COUNT: Rare = Rare::new();
    if !is_guarded() {
        return;
    }
    let mut whole = numbered(3200);
    let source: Vec<_> = whole.chunks_mut(100).map(unsure).collect();
    for length in [1, 8, 9, 100, 1000, 3200] {
        let mut sink = vec![UNWRITTEN; 3200];
        let taken = calls(
            |reach| {
                let sinks: Vec<_> = sink.chunks_mut(3200).map(unsure).collect();
                assert_eq!(reach.transfer(&source, &sinks, 0, length), Ok(()));
            },
            &COUNT,
        );
        let one = if length > 8 { ONE_COPY } else { 1 };
        assert_eq!(taken, one, "{length}");
        let length = usize::try_from(length).unwrap();
        assert_eq!(sink[..length], numbered(3200)[..length]);
        assert!(sink[length..].iter().all(|&byte| byte == UNWRITTEN), "{length}");
    }
    // There are more pieces than one call copies.
    let mut sink = vec![UNWRITTEN; 3200];
    let sinks: Vec<_> = sink.chunks_mut(7).map(unsure).collect();
    let taken = calls(|reach| assert_eq!(reach.transfer(&source, &sinks, 0, 3200), Ok(())), &COUNT);
    assert!((2..30).contains(&taken), "{taken}");
    assert_eq!(sink, numbered(3200));
}

#[test]
fn a_datagram_and_its_header_are_copied_by_one_call() {
    static COUNT: Rare = Rare::new();
    if !is_guarded() {
        return;
    }
    let mut room = vec![UNWRITTEN; 140];
    let sink = [unsure(&mut room)];
    let deliver = |reach: Reach| {
        let data = Data::Bytes(&[2; 90]);
        assert_eq!(reach.deliver_behind(Some(&[1; 40]), data, &sink, 90), Ok(()));
    };
    assert_eq!(calls(deliver, &COUNT), ONE_COPY);
    assert_eq!(room, [vec![1; 40], vec![2; 90], vec![UNWRITTEN; 10]].concat());
}

#[test]
fn memory_that_is_mapped_for_certain_takes_no_call() {
    static COUNT: Rare = Rare::new();
    if !is_guarded() {
        return;
    }
    let (mut a, mut b) = (numbered(64), vec![0; 64]);
    let mut words = [0; 16];
    let aligned = words.as_ptr().align_offset(8);
    let word = segment(&mut words[aligned..aligned + 8]);
    let [source, sink] = [segment(&mut a), segment(&mut b)];
    let copies = |reach: Reach| {
        assert_eq!(reach.transfer(&[source], &[sink], 0, 64), Ok(()));
        assert_eq!(reach.transfer(&[source, source], &[sink], 8, 64), Ok(()));
        assert_eq!(reach.deliver(5, &[sink]), Ok(()));
        assert_eq!(reach.collect_bytes(&[source], 0, &mut [0; 64]), Ok(()));
        assert_eq!(reach.deliver_behind(Some(&[1; 40]), Data::Bytes(&[2; 8]), &[sink], 8), Ok(()));
        assert!(reach.finds(AtomicWord::at(word).unwrap()));
    };
    assert_eq!(calls(copies, &COUNT), 0);
    // A single segment that may be unmapped makes the call necessary.
    let unsure = Segment { mapped: false, ..source };
    let copies = |reach: Reach| {
        assert_eq!(reach.transfer(&[unsure], &[sink], 0, 64), Ok(()));
        assert_eq!(reach.transfer(&[source], &[Segment { mapped: false, ..sink }], 0, 64), Ok(()));
        assert_eq!(reach.transfer(&[source, unsure], &[sink], 8, 64), Ok(()));
    };
    assert_eq!(calls(copies, &COUNT), 3 * ONE_COPY);
}
