//! An allocator that counts, over all threads of the process.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator with a counter, for tests that assert that a data path does not allocate.
///
/// The test binary makes it its global allocator and compares two snapshots. A failed allocation counts
/// too: it was asked for. Freeing does not count.
///
/// Everything in the process is counted, so put such a test into a binary of its own with
/// `harness = false`: the threads of the usual harness allocate when they like.
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

impl CountingAllocator {
    /// An allocator that has counted nothing yet.
    pub const fn new() -> Self {
        Self { allocations: AtomicU64::new(0), bytes: AtomicU64::new(0), freed: AtomicU64::new(0) }
    }

    /// How many times memory was asked for since the process began, by `alloc`, `alloc_zeroed` or
    /// `realloc`, on any thread.
    ///
    /// The work of another thread is in the count once that thread was joined or has otherwise said,
    /// through a lock or an atomic, that it is done.
    pub fn allocations(&self) -> u64 {
        // Whatever tells that the other thread is done also orders its increments before this load.
        self.allocations.load(Ordering::Relaxed)
    }

    /// How many bytes were asked for since the process began, whatever was freed again meanwhile.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many bytes are allocated now.
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

// SAFETY: SAFETY.md F13: every call goes unchanged to `System`, which keeps the contract of
// `GlobalAlloc`; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: SAFETY.md F13: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: SAFETY.md F13: the caller's promises are those that `System` asks for.
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
