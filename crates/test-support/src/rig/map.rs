//! Mapped memory, with the permissions that a test wants.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // As the rig.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous private memory; unmapped when dropped.
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    pub fn readable(length: usize) -> Self {
        Self::new(length, ProtFlags::READ)
    }

    pub fn writable(length: usize) -> Self {
        Self::new(length, ProtFlags::READ | ProtFlags::WRITE)
    }

    pub fn inaccessible(length: usize) -> Self {
        Self::new(length, ProtFlags::empty())
    }

    fn new(length: usize, permissions: ProtFlags) -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, permissions, flags) };
        Self { start: start.unwrap().cast(), length }
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Unmaps the bytes from `from` on, a multiple of the page size.
    pub fn truncate(&mut self, from: usize) {
        unsafe { munmap(self.start.add(from).cast(), self.length - from) }.unwrap();
        self.length = from;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unsafe { munmap(self.start.cast(), self.length) }.unwrap();
    }
}
