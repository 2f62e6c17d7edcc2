//! Registered memory.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::param::page_size;

use super::map::Mapping;
use super::trap::Trap;
use super::{Pd, REMOTE_ATOMIC, REMOTE_WRITE, errno, verbs};

/// A registration of memory that the test owns. The test accesses the memory as the device does,
/// only by copies through raw pointers, and only while no request in flight uses it.
pub struct Mr {
    pub mr: *mut ibv_mr,
    memory: Memory,
}

/// The memory of a registration.
enum Memory {
    Owned(Vec<u8>),
    /// A memory file, which other processes may map, and its descriptor. The provider may have
    /// another one.
    File(Mapping, OwnedFd),
}

impl Memory {
    fn start(&self) -> *mut u8 {
        match self {
            Self::Owned(bytes) => ptr::with_exposed_provenance_mut(bytes.as_ptr().addr()),
            Self::File(mapping, _) => mapping.start(),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.len(),
            Self::File(mapping, _) => mapping.length(),
        }
    }
}

/// Whether [`use_files`] was called.
static FILES: AtomicBool = AtomicBool::new(false);

/// From now on, [`Pd::register`] and similar functions put each region that peers could map into a
/// file, even a short one.
pub fn use_files() {
    FILES.store(true, Ordering::Relaxed);
}

/// The length of the shortest region that the provider wants in a file.
const LONG: usize = 64 << 10;

unsafe impl Send for Mr {}
unsafe impl Sync for Mr {}

impl Pd {
    pub fn register(&self, length: usize, access: u32) -> Mr {
        self.register_filled(vec![0; length], access)
    }

    pub fn register_filled(&self, memory: Vec<u8>, access: u32) -> Mr {
        match self.gives_file(memory.len(), access) {
            true => self.register_file(memory.len(), access).filled(&memory),
            false => self.register_private(memory, access),
        }
    }

    /// Registers memory that has no file. A forked child gets a copy of it.
    pub fn register_private(&self, mut memory: Vec<u8>, access: u32) -> Mr {
        let mr = self.try_register(memory.as_mut_ptr(), memory.len(), access).unwrap();
        Mr { mr, memory: Memory::Owned(memory) }
    }

    /// Returns true if the provider could use the file of a region with this length and access.
    pub fn wants_file(&self, length: usize, access: u32) -> bool {
        unsafe { verbs().wants_file(self.0, length, access) }
    }

    fn gives_file(&self, length: usize, access: u32) -> bool {
        FILES.load(Ordering::Relaxed) && length > 0 && self.wants_file(length.max(LONG), access)
    }

    /// Registers the pages of a new memory file, and passes the file to the provider.
    pub fn register_file(&self, length: usize, access: u32) -> Mr {
        self.register_file_at(length, None, access)
    }

    /// Like [`register_file`](Self::register_file). Requests use the address `iova`, if
    /// given, for its first byte.
    pub fn register_file_at(&self, length: usize, iova: Option<u64>, access: u32) -> Mr {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        // Other processes map no file with holes.
        let size = length.next_multiple_of(page_size()) as u64;
        fallocate(&file, FallocateFlags::empty(), 0, size).unwrap();
        let mapping = Mapping::of_file(&file, length);
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if access & (REMOTE_WRITE | REMOTE_ATOMIC) == 0 {
            seals |= SealFlags::FUTURE_WRITE;
        }
        fcntl_add_seals(&file, seals).unwrap();
        let start = mapping.start();
        let mr = match iova {
            Some(iova) => self.try_register_range_at(start, length, iova, access),
            None => self.try_register(start, length, access),
        };
        let mr = mr.unwrap();
        note_file(mr, &file);
        Mr { mr, memory: Memory::File(mapping, file) }
    }

    /// Registers the memory. Requests use the address `iova` for its first byte.
    pub fn register_at(&self, mut memory: Vec<u8>, iova: u64, access: u32) -> Mr {
        if self.gives_file(memory.len(), access) {
            return self.register_file_at(memory.len(), Some(iova), access).filled(&memory);
        }
        let mr = self.try_register_at(&mut memory, iova, access).unwrap();
        Mr { mr, memory: Memory::Owned(memory) }
    }

    pub fn try_register_at(
        &self,
        memory: &mut [u8],
        iova: u64,
        access: u32,
    ) -> Result<*mut ibv_mr, Errno> {
        self.try_register_range_at(memory.as_mut_ptr(), memory.len(), iova, access)
    }

    pub fn try_register_range_at(
        &self,
        start: *mut u8,
        length: usize,
        iova: u64,
        access: u32,
    ) -> Result<*mut ibv_mr, Errno> {
        let register = verbs().reg_mr_iova2.unwrap();
        let mr = unsafe { register(self.0, start.cast(), length, iova, access) };
        if mr.is_null() { Err(errno()) } else { Ok(mr) }
    }

    /// Prefetches the pages of this element. Returns 0 or an error number.
    pub fn prefetch(&self, mut sge: ibv_sge) -> i32 {
        let advice = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
        unsafe { ibv_advise_mr(self.0, advice, IBV_ADVISE_MR_FLAG_FLUSH, &raw mut sge, 1) }
    }

    /// Registers any range of memory. The caller must [`deregister`] it.
    pub fn try_register(
        &self,
        start: *mut u8,
        length: usize,
        access: u32,
    ) -> Result<*mut ibv_mr, Errno> {
        let access = access.cast_signed();
        let mr = unsafe { (verbs().reg_mr)(self.0, start.cast(), length, access) };
        if mr.is_null() { Err(errno()) } else { Ok(mr) }
    }
}

/// Returns the local key of a region that [`Pd::try_register`] has registered.
pub fn key_of(mr: *mut ibv_mr) -> u32 {
    unsafe { (*mr).lkey }
}

/// Returns the key that peers use for the region. It may be missing if the region grants peers no
/// rights.
pub fn rkey_of(mr: *mut ibv_mr) -> u32 {
    unsafe { (*mr).rkey }
}

/// Returns a copy of the region's struct.
pub fn fields_of(mr: *mut ibv_mr) -> ibv_mr {
    unsafe { *mr }
}

/// Informs the provider that the region's memory stays mapped.
pub fn note_mapped(mr: *mut ibv_mr) {
    unsafe { verbs().note_mapped(mr) };
}

/// Informs the provider that the region's memory is in this file and stays mapped.
fn note_file(mr: *mut ibv_mr, file: &OwnedFd) {
    note_mapped(mr);
    unsafe { verbs().note_file(mr, file.as_raw_fd()) };
}

pub fn deregister(mr: *mut ibv_mr) {
    assert_eq!(try_deregister(mr), 0);
}

/// Deregisters the region. Returns 0 or an error number. After an error, the memory is still
/// registered.
pub fn try_deregister(mr: *mut ibv_mr) -> i32 {
    unsafe { (verbs().dereg_mr)(mr) }
}

impl Mr {
    pub fn key(&self) -> u32 {
        key_of(self.mr)
    }

    /// Passes the file of this memory to the provider for a second region of these pages. Does
    /// nothing unless the file has exactly its pages, and peers could map a longer region with this
    /// access. The caller deregisters the region before it drops this memory.
    ///
    /// [`Verbs::note_file`] demands a file for each region. Here, only this process maps the file.
    /// It copies nothing after a deregistration has returned.
    pub fn share_file(&self, pd: &Pd, mr: *mut ibv_mr, access: u32) {
        let pages = |length: usize| length.div_ceil(page_size());
        let length = fields_of(mr).length;
        if let Memory::File(_, file) = &self.memory
            && pages(length) == pages(self.length())
            && pd.gives_file(length, access)
        {
            note_file(mr, file);
        }
    }

    fn filled(self, bytes: &[u8]) -> Self {
        self.copy_in(0, bytes);
        self
    }

    /// Informs the provider that the memory stays mapped, which is true because this value owns it.
    pub fn mapped(self) -> Self {
        note_mapped(self.mr);
        self
    }

    /// Returns a trap that springs at the first access to a page of this memory.
    pub fn trap(&self, page: usize) -> Trap {
        let Memory::File(mapping, _) = &self.memory else { panic!("a file has pages of its own") };
        assert!(page * page_size() < mapping.length());
        Trap::at_access(mapping.start().addr() + page * page_size())
    }

    /// Returns the key that peers use for the region.
    pub fn rkey(&self) -> u32 {
        rkey_of(self.mr)
    }

    pub fn address(&self) -> u64 {
        self.start().addr() as u64
    }

    pub fn sge(&self, from: usize, length: usize) -> ibv_sge {
        let length = u32::try_from(length).unwrap();
        ibv_sge { addr: self.address() + from as u64, length, lkey: self.key() }
    }

    pub fn start(&self) -> *mut u8 {
        self.memory.start()
    }

    pub fn length(&self) -> usize {
        self.memory.length()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length()];
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.start(), bytes.len()) };
        bytes
    }

    /// Copies the bytes at this offset to `bytes`.
    pub fn copy_out(&self, from: usize, bytes: &mut [u8]) {
        assert!(from + bytes.len() <= self.length());
        let start = unsafe { self.start().add(from) };
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(start, bytes.len()) };
    }

    /// Returns the eight bytes that are now at this offset, for a test that waits for a peer's
    /// write.
    pub fn word(&self, from: usize) -> u64 {
        assert!(from.is_multiple_of(8) && from + 8 <= self.length());
        unsafe { self.start().add(from).cast::<u64>().read_volatile() }
    }

    /// Copies `bytes` to this offset.
    pub fn copy_in(&self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.length());
        let start = unsafe { self.start().add(from) };
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn fill(&self, byte: u8) {
        unsafe { self.start().write_bytes(byte, self.length()) };
    }

    pub fn fill_part(&self, from: usize, length: usize, byte: u8) {
        assert!(from + length <= self.length());
        let start = unsafe { self.start().add(from) };
        unsafe { start.write_bytes(byte, length) };
    }

    #[track_caller]
    pub fn assert_filled(&self, byte: u8) {
        assert_eq!(self.bytes(), vec![byte; self.length()]);
    }

    /// Checks that deregistering the region is refused. Returns the error number.
    pub fn try_deregister(&self) -> i32 {
        let refused = try_deregister(self.mr);
        assert_ne!(refused, 0);
        refused
    }

    /// Deregisters the region, and returns its memory.
    pub fn deregister(mut self) -> Vec<u8> {
        deregister(std::mem::replace(&mut self.mr, ptr::null_mut()));
        match &mut self.memory {
            Memory::Owned(memory) => std::mem::take(memory),
            Memory::File(..) => self.bytes(),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.mr.is_null() {
            deregister(self.mr);
        }
    }
}
