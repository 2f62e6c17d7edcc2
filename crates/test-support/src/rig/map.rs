//! Mapped memory whose permissions a test can choose.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use std::os::fd::OwnedFd;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// Anonymous memory or a mapped file. It is unmapped when dropped.
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

    /// Maps memory that is shared with forked children.
    pub fn shared(length: usize) -> Self {
        Self::with(length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    pub fn of_file(file: &OwnedFd, length: usize) -> Self {
        let (permissions, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, permissions, flags, file, 0) }.unwrap();
        Self { start: start.cast(), length }
    }

    fn new(length: usize, permissions: ProtFlags) -> Self {
        Self::with(length, permissions, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn with(length: usize, permissions: ProtFlags, flags: MapFlags) -> Self {
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, permissions, flags) };
        Self { start: start.unwrap().cast(), length }
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns a copy of some of the bytes, which must not change in the meantime.
    pub fn bytes(&self, from: usize, length: usize) -> Vec<u8> {
        assert!(from + length <= self.length);
        let mut bytes = vec![0; length];
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.start.add(from), length) };
        bytes
    }

    pub fn put(&self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.length);
        unsafe { self.start.add(from).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Makes the memory inaccessible, as if it were unmapped. Its addresses stay reserved, so no
    /// other mapping can use them.
    pub fn take_away(&self) {
        unsafe { mprotect(self.start.cast(), self.length, MprotectFlags::empty()) }.unwrap();
    }

    /// Makes the memory read-only.
    pub fn take_writes_away(&self) {
        unsafe { mprotect(self.start.cast(), self.length, MprotectFlags::READ) }.unwrap();
    }

    /// Unmaps the bytes from offset `from`, which must be a multiple of the page size, to the end.
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
