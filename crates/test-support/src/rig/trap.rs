//! Pages at which a process halts when it accesses them, so that a test can stop or end it at a chosen step.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use std::ffi::{c_int, c_void};
use std::fs::read_to_string;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::mm::{MprotectFlags, mprotect};
use rustix::param::page_size;

const READ_AND_WRITE: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// A page that faults until the trap has sprung.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// The address of the page.
    page: usize,
    /// The permissions before and after.
    permissions: [MprotectFlags; 2],
}

impl Trap {
    /// Springs at the first access to a writable page.
    pub const fn at_access(page: usize) -> Self {
        Self { page, permissions: [MprotectFlags::empty(), READ_AND_WRITE] }
    }

    /// Springs when a page that is mapped for reading alone is read.
    pub const fn at_read(page: usize) -> Self {
        Self { page, permissions: [MprotectFlags::empty(), MprotectFlags::READ] }
    }

    /// Springs when a writable page is written.
    pub const fn at_write(page: usize) -> Self {
        Self { page, permissions: [MprotectFlags::READ, READ_AND_WRITE] }
    }

    fn holds(&self, address: usize) -> bool {
        (self.page..self.page + page_size()).contains(&address)
    }

    /// Gives the page the permissions that it has before (0) or after (1) the trap springs.
    fn set(&self, when: usize) -> bool {
        let page = ptr::with_exposed_provenance_mut(self.page);
        unsafe { mprotect(page, page_size(), self.permissions[when]) }.is_ok()
    }
}

struct Traps {
    all: Vec<Trap>,
    signal: c_int,
    /// The address of a word, and its value when the last trap sprang.
    watched: Option<usize>,
    found: AtomicU32,
    /// The number of traps that have sprung.
    sprung: AtomicUsize,
}

static TRAPS: OnceLock<Traps> = OnceLock::new();

/// Sets traps that spring one after another. When the last one springs, the thread gets the signal. If the process
/// survives that, the thread continues. A process can do this once, and has no other handler of SIGSEGV.
/// [`found_at_signal`] returns the value that the word at `watched` had then.
pub fn signal_at(all: Vec<Trap>, signal: c_int, watched: Option<usize>) {
    let (found, sprung) = (AtomicU32::new(0), AtomicUsize::new(0));
    assert!(TRAPS.set(Traps { all, signal, watched, found, sprung }).is_ok(), "traps are set");
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = at_fault;
    let set_up = action.as_mut_ptr();
    unsafe { (*set_up).sa_sigaction = handler as libc::sighandler_t };
    unsafe { (*set_up).sa_flags = libc::SA_SIGINFO };
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, set_up, ptr::null_mut()) }, 0);
    assert!(TRAPS.get().unwrap().all[0].set(0));
}

/// Returns the value that the watched word had at the signal, or `None` if no signal was sent.
pub fn found_at_signal() -> Option<u32> {
    let traps = TRAPS.get()?;
    let all = traps.sprung.load(Ordering::Acquire) == traps.all.len();
    all.then(|| traps.found.load(Ordering::Relaxed))
}

/// Returns the addresses of this process's mappings of files with this name, if they have these permissions (as in
/// `man 5 proc_pid_maps`).
pub fn mappings(name: &str, permissions: &str) -> Vec<usize> {
    let maps = read_to_string("/proc/self/maps").unwrap();
    let is_one = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(permissions) && line.contains(name)
    };
    let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    maps.lines().filter(is_one).map(start).collect()
}

/// Returns the value of a word that other processes may write.
pub fn word_at(address: usize) -> u32 {
    let word = ptr::with_exposed_provenance_mut::<u32>(address);
    unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed)
}

extern "C" fn at_fault(fault: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let address = unsafe { (*info).si_addr() }.addr();
    let traps = TRAPS.get().filter(|traps| traps.all.iter().any(|trap| trap.holds(address)));
    let Some(traps) = traps else {
        // With the default action, the instruction faults again and ends the process.
        unsafe { libc::signal(fault, libc::SIG_DFL) };
        return;
    };
    let number = traps.sprung.load(Ordering::Acquire);
    let next = traps.all.get(number).filter(|trap| trap.holds(address));
    let advance = |_: &&Trap| {
        let (to, order) = (number + 1, Ordering::AcqRel);
        traps.sprung.compare_exchange(number, to, order, Ordering::Relaxed).is_ok()
    };
    // If another thread springs the trap, this one faults until the page is accessible.
    let Some(trap) = next.filter(advance) else { return };
    // Before the signal, because the device's thread, which blocks SIGSEGV, may read the page afterwards.
    let mut is_set = trap.set(1);
    match traps.all.get(number + 1) {
        Some(next) => is_set &= next.set(0),
        None => {
            traps.found.store(traps.watched.map_or(0, word_at), Ordering::Relaxed);
            is_set &= unsafe { libc::raise(traps.signal) == 0 };
        }
    }
    if !is_set {
        std::process::abort();
    }
}
