//! Copies whose memory is not there, or may not be used so.

use std::ptr;

use crate::engine::memory::copy::reach::{Fault, Reach, kernel_copies};

use super::*;

const UNWRITTEN: u8 = 0xee;

/// Three pages, which stay the test's, so that no other thread maps anything there.
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
        // SAFETY: a new mapping, anywhere.
        let base = unsafe { libc::mmap(ptr::null_mut(), 3 * page(), access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let pages = Self { base: base.cast() };
        pages.bytes(0, 3 * page()).fill(UNWRITTEN);
        pages
    }

    fn protect(&self, number: usize, access: i32) {
        let start = self.base.wrapping_add(number * page());
        // SAFETY: one of this mapping's pages.
        assert_eq!(unsafe { libc::mprotect(start.cast(), page(), access) }, 0);
    }

    #[allow(clippy::mut_from_ref)] // One at a time, in each of the tests.
    fn bytes(&self, from: usize, length: usize) -> &mut [u8] {
        assert!(from + length <= 3 * page());
        // SAFETY: within the mapping, of which the test looks at what it can.
        unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(from), length) }
    }

    fn segment(&self, from: usize, length: usize) -> Segment {
        let address = self.base.wrapping_add(from).expose_provenance() as u64;
        // SAFETY: a range of this mapping, which outlives the segment.
        unsafe { Segment::new(address, length as u64) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing else knows of it.
        unsafe { libc::munmap(self.base.cast(), 3 * page()) };
    }
}

/// Below what the system maps (`vm.mmap_min_addr`).
fn nowhere(length: u64) -> Segment {
    // SAFETY: used by copies alone that ask whether it is there.
    unsafe { Segment::new(4096, length) }
}

/// Whether there is anything to test: not under an emulator that does not know the calls. Job `valgrind`
/// leaves these tests out.
fn is_guarded() -> bool {
    assert!(kernel_copies() || cfg!(not(target_arch = "x86_64")), "process_vm_readv is forbidden");
    kernel_copies()
}

fn copy(source: &[Segment], sink: &[Segment]) -> Result<(), Fault> {
    Reach::MayBeGone.transfer(source, sink, 0, u64::MAX)
}

#[test]
fn memory_that_is_not_there_is_a_fault_of_its_side() {
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
    assert_eq!(Reach::MayBeGone.deliver(5, &[nowhere(8)]), Err(Fault::Sink));
    assert_eq!(Reach::MayBeGone.deliver_bytes(&[5; 40], &[nowhere(40)], 0), Err(Fault::Sink));
    let behind = Reach::MayBeGone.transfer_behind(&[here], &[here, nowhere(8)], 100, 8);
    assert_eq!(behind, Err(Fault::Sink));
}

#[test]
fn memory_without_the_permission_is_as_if_it_were_not_there() {
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
fn what_is_before_the_hole_is_copied_and_nothing_behind_it() {
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
fn the_end_is_not_written_before_all_else_was() {
    if !is_guarded() {
        return;
    }
    let (pages, mut source) = (Pages::new(), numbered(500));
    pages.protect(1, libc::PROT_READ);
    // The last eight bytes could be written, what is before them could not.
    let sink = pages.segment(2 * page() - 492, 500);
    assert_eq!(copy(&[segment(&mut source)], &[sink]), Err(Fault::Sink));
    assert_eq!(pages.bytes(2 * page(), 8), [UNWRITTEN; 8]);
}

#[test]
fn a_second_segment_that_is_not_there_is_a_fault_after_the_first() {
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

/// As the memory of some devices' files, the page with the kernel's clock is there for who has it mapped, and
/// cannot be looked up.
#[test]
fn memory_that_cannot_be_looked_up_is_copied() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let clock = maps.lines().find(|line| line.ends_with("[vvar]"));
    let start = clock.and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
    let (Some(start), true) = (start, is_guarded()) else { return };
    let pages = Pages::new();
    for length in [3, 8, 100] {
        pages.bytes(0, 200).fill(UNWRITTEN);
        // SAFETY: used by a copy alone that asks whether it is there.
        let source = unsafe { Segment::new(start, length as u64) };
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
    assert!(Reach::MayBeGone.finds(word(pages.segment(8, 8))));
    assert!(!Reach::MayBeGone.finds(word(nowhere(8))));
    pages.protect(0, libc::PROT_READ);
    assert!(!Reach::MayBeGone.finds(word(pages.segment(8, 8))));
    assert!(!Reach::MayBeGone.finds(word(pages.segment(page() - 8, 8))));
    assert!(Reach::MayBeGone.finds(word(pages.segment(page(), 8))), "the next page");
    pages.protect(0, libc::PROT_READ | libc::PROT_WRITE);
    assert!(Reach::MayBeGone.finds(word(pages.segment(8, 8))));
    assert_eq!(pages.bytes(0, 16), [UNWRITTEN; 16], "it was changed by the look");
    pages.protect(0, libc::PROT_NONE);
    assert!(!Reach::MayBeGone.finds(word(pages.segment(8, 8))));
}
