//! The order of the stores, observed through a page on which they fault.
//!
//! The end of the sink lies alone on a read-only page. The first store to that page faults. By then, everything before
//! it must have been written. The handler makes the page writable, and the copy goes on.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::*;

/// The read-only page.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// The address of the first store to the page.
static FAULT: AtomicUsize = AtomicUsize::new(0);
/// The start of the sink.
static SINK: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// The number of bytes before the page that were still unwritten at that store.
static MISSING: AtomicUsize = AtomicUsize::new(0);
/// Lets one test at a time use the handler.
static TURN: Mutex<()> = Mutex::new(());

/// The value of an unwritten byte; the source has none of these.
const UNWRITTEN: u8 = 0xee;

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let page_size = rustix::param::page_size();
    let page = PAGE.load(Ordering::Relaxed);
    // SAFETY: the kernel passes a handler with SA_SIGINFO a valid description of the signal.
    let info = unsafe { &*info };
    // SAFETY: the signal is a fault, which has an address.
    let place = unsafe { info.si_addr() }.addr();
    if !(page.addr()..page.addr() + page_size).contains(&place) {
        // SAFETY: the test has not caused this fault. With the default action, the instruction faults again and ends
        // the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    FAULT.store(place, Ordering::Relaxed);
    let sink = SINK.load(Ordering::Relaxed);
    let missing = (0..page.addr() - sink.addr()).filter(|&at| {
        let byte = sink.wrapping_add(at);
        // SAFETY: the byte lies before the page, in the test's mapping.
        unsafe { byte.read_volatile() == UNWRITTEN }
    });
    MISSING.store(missing.count(), Ordering::Relaxed);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the page belongs to the test's own mapping.
    unsafe { libc::mprotect(page.cast(), page_size, access) };
}

/// Two pages or more; the last one is read-only until a store has faulted on it.
struct Trap {
    base: *mut u8,
    bytes: usize,
}

impl Trap {
    fn new(pages: usize) -> Self {
        let bytes = pages * rustix::param::page_size();
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: this creates a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), bytes }
    }

    /// Copies so that the last `end` bytes of the sink lie on the trapped page. Returns the offset of the first store
    /// to that page, and the number of bytes before the page that were still unwritten at that store.
    fn spring<M: Moves>(&self, source: &[u8], end: usize) -> (usize, usize) {
        let page_size = rustix::param::page_size();
        // SAFETY: the test owns this memory exclusively.
        unsafe { self.base.write_bytes(UNWRITTEN, self.bytes) };
        let page = self.base.wrapping_add(self.bytes - page_size);
        // SAFETY: the page belongs to this test's own mapping.
        assert_eq!(unsafe { libc::mprotect(page.cast(), page_size, libc::PROT_READ) }, 0);
        let sink = page.wrapping_sub(source.len() - end);
        PAGE.store(page, Ordering::Relaxed);
        SINK.store(sink, Ordering::Relaxed);
        FAULT.store(0, Ordering::Relaxed);
        // SAFETY: both sides are as long as the source: the sink ends `end` bytes into the last page.
        unsafe { copy::<M>(source.as_ptr(), sink, source.len()) };
        let fault = FAULT.load(Ordering::Relaxed);
        assert_ne!(fault, 0, "nothing was stored there");
        (fault - page.addr(), MISSING.load(Ordering::Relaxed))
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, and nothing else uses it.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

fn with_handler(test: impl FnOnce()) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid; the handler only reads, stores to atomics and calls mprotect.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) }, 0);
    test();
    // SAFETY: this restores the previous action.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) }, 0);
}

fn the_end_comes_last<M: Moves>() {
    let trap = Trap::new(18);
    with_handler(|| {
        for length in lengths().filter(|&length| length > 1) {
            let source: Vec<u8> = (0..=200).cycle().take(length).collect();
            let end = (1 << length.ilog2()).min(8);
            // First, exactly the bytes of the last store lie on the page. Then fewer do, so that this store begins on
            // the page before.
            assert_eq!(trap.spring::<M>(&source, end), (0, 0), "{length}: bytes follow the end");
            // On other processors a store that faults half-way may have written the first half.
            if cfg!(not(target_arch = "x86_64")) {
                continue;
            }
            let (_, missing) = trap.spring::<M>(&source, 1);
            assert_eq!(missing, end - 1, "{length}: the end is not one store");
        }
    });
}

#[test]
fn the_last_word_comes_after_all_others() {
    the_end_comes_last::<Native>();
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_last_word_comes_after_all_others_without_avx() {
    the_end_comes_last::<Sse>();
}

/// Stores go from low to high addresses, except where they overlap. At the first store beyond a page boundary, fewer
/// than 64 bytes below the boundary are unwritten, wherever the boundary lies.
#[test]
fn copies_run_upwards() {
    let trap = Trap::new(18);
    with_handler(|| {
        for length in [100, 200, 500, 1000, 3000, 5000, 40_000] {
            let source: Vec<u8> = (0..=200).cycle().take(length).collect();
            for end in (9..length.min(4000)).step_by(37) {
                let (_, missing) = trap.spring::<Native>(&source, end);
                assert!(missing < 64, "{length}, {end}: {missing} bytes were left for later");
            }
        }
    });
}
