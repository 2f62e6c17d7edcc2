//! Registration checks memory as the kernel does when it pins pages. It refuses memory that is not mapped, or not
//! writable although the device may write it, because such memory would cause a crash later.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use rdma_types::AccessFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::engine::Refusal;
use crate::memory::region::{LOCAL_READ, MAPPED};

const WRITES_FROM_PEERS: u32 = AccessFlags::REMOTE_WRITE.bits() | AccessFlags::REMOTE_ATOMIC.bits();
/// All rights that a peer can have on this device.
pub(crate) const FROM_PEERS: u32 = WRITES_FROM_PEERS | AccessFlags::REMOTE_READ.bits();
/// The rights that this device accepts: those that it checks, and those that it may ignore
/// (`IBV_ACCESS_OPTIONAL_RANGE`: bits 20 to 29).
const KNOWN: u32 = FROM_PEERS
    | AccessFlags::LOCAL_WRITE.bits()
    | AccessFlags::MW_BIND.bits()
    | AccessFlags::ZERO_BASED.bits()
    | AccessFlags::HUGETLB.bits()
    | OPTIONAL;
const OPTIONAL: u32 = 0x3ff0_0000;

const _: () = assert!(KNOWN & (LOCAL_READ | MAPPED) == 0, "no program can set them");

/// A combination of access rights that was checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access(u32);

impl Access {
    /// Refuses combinations that the verbs forbid (a peer may not write where the device itself may not), and rights
    /// that the device does not support.
    pub(crate) fn check(access: u32) -> Result<Self, Refusal> {
        if access & WRITES_FROM_PEERS != 0 && access & AccessFlags::LOCAL_WRITE.bits() == 0 {
            return Err(Refusal::Invalid);
        }
        if access & !KNOWN != 0 { Err(Refusal::Unsupported) } else { Ok(Self(access)) }
    }

    pub(crate) fn is_writable(self) -> bool {
        self.0 & (WRITES_FROM_PEERS | AccessFlags::LOCAL_WRITE.bits()) != 0
    }
}

/// A non-empty range of whole pages, as addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pages {
    start: u64,
    end: u64,
}

impl Pages {
    pub(crate) fn length(self) -> u64 {
        self.end - self.start
    }
}

/// Returns the pages that a range touches, or `None` if the range is empty or exceeds the address space.
pub(crate) fn pages(address: u64, length: u64) -> Option<Pages> {
    let page = rustix::param::page_size() as u64;
    let end = address.checked_add(length)?.checked_next_multiple_of(page)?;
    let end_fits = length > 0 && isize::try_from(end).is_ok();
    end_fits.then_some(Pages { start: address - address % page, end })
}

/// Faults the pages in, for writing if the device may write to them. Where the kernel cannot do this, only checks that
/// the pages are mapped with the necessary permission.
pub(crate) fn populate(pages: Pages, writable: bool) -> Result<(), Refusal> {
    match advise(pages, writable) {
        Ok(()) if advice_is_followed() => Ok(()),
        Ok(()) => (1..EMULATORS_TRIES)
            .find_map(|_| maps::covers(pages, writable).ok())
            .map_or_else(|| maps::covers(pages, writable), Ok),
        // Kernels before 5.14 do not know the advice. Later ones differ in the error for memory that lacks the
        // permission.
        Err(Errno::INVAL | Errno::AGAIN | Errno::NOMEM) => maps::covers(pages, writable),
        Err(_) => Err(Refusal::Fault),
    }
}

/// The number of tries under an emulator. The emulator builds `/proc/self/maps` from two lists, so a range may be
/// missing while another thread maps memory next to it. A range that is really unmapped is missing each time.
const EMULATORS_TRIES: u32 = 8;

fn advise(pages: Pages, writable: bool) -> Result<(), Errno> {
    // `pages` checked that the end fits in a pointer.
    #[allow(clippy::cast_possible_truncation)]
    let (start, length) = (pages.start as usize, pages.length() as usize);
    let start = std::ptr::with_exposed_provenance_mut(start);
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: populating changes no contents and unmaps nothing. A range that is not mapped is reported (madvise(2),
    // SAFETY.md F15).
    unsafe { madvise(start, length, advice) }
}

/// Returns true if the system really follows the advice. An emulator of another processor (qemu-user) ignores it and
/// reports success, even for the page at address 0, which is never mapped.
fn advice_is_followed() -> bool {
    static FOLLOWED: OnceLock<bool> = OnceLock::new();
    *FOLLOWED.get_or_init(|| pages(1, 1).is_none_or(|nobodys| advise(nobodys, false).is_err()))
}

/// The check of [`populate`], based on `/proc/self/maps` (proc_pid_maps(5)). It does not fault pages in.
mod maps {
    use super::{Pages, Refusal};

    pub(super) fn covers(pages: Pages, writable: bool) -> Result<(), Refusal> {
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Refusal::Fault)?;
        if covered(&maps, pages, writable) { Ok(()) } else { Err(Refusal::Fault) }
    }

    pub(super) fn covered(maps: &str, pages: Pages, writable: bool) -> bool {
        let mut next = pages.start;
        for (start, end, permissions) in maps.lines().filter_map(parse) {
            if next >= pages.end || start > next {
                break;
            }
            if end > next {
                let allowed = permissions.starts_with(if writable { "rw" } else { "r" });
                if !allowed {
                    return false;
                }
                next = end;
            }
        }
        next >= pages.end
    }

    fn parse(line: &str) -> Option<(u64, u64, &str)> {
        let mut fields = line.split(' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some((number(start)?, number(end)?, fields.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 r-xp 00000000 00:00 0 text
3000-5000 rw-p 00000000 00:00 0
5000-6000 rw-s 00000000 00:00 0 shared
8000-9000 ---p 00000000 00:00 0 guard
";

    #[test]
    fn maps_answer_for_gaps_borders_and_permissions() {
        let covered = |start, end, writable| maps::covered(MAPS, Pages { start, end }, writable);
        assert!(covered(0x1000, 0x6000, false));
        assert!(covered(0x3000, 0x6000, true));
        assert!(!covered(0x2000, 0x4000, true), "text is not writable");
        assert!(!covered(0x0, 0x2000, false), "begins in a gap");
        assert!(!covered(0x5000, 0x7000, false), "ends in a gap");
        assert!(!covered(0x8000, 0x9000, false), "no permission at all");
        assert!(!covered(0xa000, 0xb000, false), "after all mappings");
    }

    #[test]
    fn pages_are_whole_and_do_not_wrap() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(pages(page + 1, 1), Some(Pages { start: page, end: 2 * page }));
        assert_eq!(pages(page, page + 1), Some(Pages { start: page, end: 3 * page }));
        assert_eq!(pages(page, 0), None);
        assert_eq!(pages(page, u64::MAX), None);
        assert_eq!(pages(u64::MAX - 1, 1), None);
    }

    #[test]
    fn both_ways_of_probing_agree_on_real_memory() {
        let text = pages((populate as fn(_, _) -> _ as *const ()).addr() as u64, 1).unwrap();
        let heap = vec![0u8; 100_000];
        let heap = pages(heap.as_ptr().addr() as u64, heap.len() as u64).unwrap();
        let nowhere = pages(1, 1).unwrap();
        for (range, writable, result) in [
            (text, false, Ok(())),
            (text, true, Err(Refusal::Fault)),
            (heap, false, Ok(())),
            (heap, true, Ok(())),
            (nowhere, false, Err(Refusal::Fault)),
        ] {
            assert_eq!(populate(range, writable), result, "{range:?} {writable}");
            assert_eq!(maps::covers(range, writable), result, "{range:?} {writable}");
        }
    }
}
