//! An allocator that counts the allocations of all threads of the process.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator with counters, for tests that assert that a data path does not allocate.
///
/// The test binary makes this its global allocator, and compares the count before and after the
/// code under test. A failed allocation is counted too. Freeing is not counted.
///
/// The counters cover the whole process, so put such a test into a separate binary with `harness =
/// false`. The threads of the default harness may allocate at any time.
///
/// # Examples
///
/// ```standalone_crate
/// use test_support::alloc_counter::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let mut buffer = vec![0_u8; 4096];
/// let before = ALLOCATOR.allocations();
/// buffer.fill(7); // what is under test
/// assert_eq!(ALLOCATOR.allocations() - before, 0);
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    allocations: AtomicU64,
    bytes: AtomicU64,
    freed: AtomicU64,
}

/// Rounds of the code under test, until enough of them in a row have allocated nothing. Counts them from 0.
///
/// Lists grow when they are longer than ever before, and a thread allocates when it first sleeps. On a busy machine, both
/// may happen late, but not again and again.
#[derive(Debug)]
pub struct Rounds<'a> {
    allocator: &'a CountingAllocator,
    name: String,
    begun: usize,
    /// The number of allocations after the last round that allocated.
    allocations: u64,
    /// The number of rounds that had begun by then.
    since: usize,
}

impl Rounds<'_> {
    /// The number of rounds in a row that must allocate nothing.
    pub const QUIET: usize = 100;
    const MOST: usize = 5_000;
}

impl Iterator for Rounds<'_> {
    type Item = usize;

    /// Begins a round, or returns `None` after [`QUIET`](Self::QUIET) rounds that allocated nothing.
    ///
    /// # Panics
    /// If thousands of rounds had no such sequence.
    fn next(&mut self) -> Option<usize> {
        let allocations = self.allocator.allocations();
        if allocations != self.allocations {
            (self.allocations, self.since) = (allocations, self.begun);
        }
        if self.begun - self.since == Self::QUIET {
            return None;
        }
        assert!(self.begun < Self::MOST, "{}: {allocations} allocations", self.name);
        self.begun += 1;
        Some(self.begun - 1)
    }
}

impl CountingAllocator {
    /// Creates an allocator whose counters are zero.
    pub const fn new() -> Self {
        Self { allocations: AtomicU64::new(0), bytes: AtomicU64::new(0), freed: AtomicU64::new(0) }
    }

    /// Returns the number of calls of `alloc`, `alloc_zeroed` and `realloc` since the process
    /// began, on all threads.
    ///
    /// Allocations by another thread are certainly included once that thread has been joined. They
    /// are also included once it has signaled through a lock or an atomic that it is finished.
    pub fn allocations(&self) -> u64 {
        // The synchronization with the other thread orders that thread's increments before this
        // load.
        self.allocations.load(Ordering::Relaxed)
    }

    /// Returns the rounds of a test. `name` is for the message of a failure.
    pub fn rounds(&self, name: impl Into<String>) -> Rounds<'_> {
        let allocations = self.allocations();
        Rounds { allocator: self, name: name.into(), begun: 0, allocations, since: 0 }
    }

    /// Returns the total size of all allocations since the process began, in bytes, including memory that was freed.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that are currently allocated.
    pub fn in_use(&self) -> u64 {
        self.bytes().wrapping_sub(self.freed.load(Ordering::Relaxed))
    }

    fn count_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn count(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

// SAFETY: SAFETY.md F13: every call goes unchanged to `System`, which upholds the contract of
// `GlobalAlloc`; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: SAFETY.md F13: the caller promises what `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: SAFETY.md F13: the caller promises what `System` requires.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.count(new_size);
        self.count_freed(layout.size());
        // SAFETY: SAFETY.md F13: `ptr` came from `System` through this allocator, with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.count_freed(layout.size());
        // SAFETY: SAFETY.md F13: `ptr` came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}
