//! Regions of memory that is given as a file.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use std::os::fd::{AsRawFd, OwnedFd};

use rdma_sys::{Errno, ibv_mr, ibv_sge};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::memory::{deregister, key_of};
use super::{Pd, errno, verbs};

/// Creates a memory file with this length and these seals.
pub fn memfd(name: &str, length: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, length).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// Returns how many mappings of this process have the given name.
pub fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// The part of a file that is registered, and its address for requests.
#[derive(Clone, Copy)]
pub struct Part {
    pub offset: u64,
    pub length: usize,
    pub iova: u64,
}

/// A registered part of a file.
pub struct DmabufMr {
    mr: *mut ibv_mr,
    part: Part,
}

impl Pd {
    pub fn try_import(&self, part: Part, file: i32, access: u32) -> Result<DmabufMr, Errno> {
        let register = verbs().reg_dmabuf_mr.unwrap();
        let Part { offset, length, iova } = part;
        let mr = unsafe { register(self.0, offset, length, iova, file, access.cast_signed()) };
        if mr.is_null() { Err(errno()) } else { Ok(DmabufMr { mr, part }) }
    }

    pub fn import(&self, part: Part, file: &OwnedFd, access: u32) -> DmabufMr {
        self.try_import(part, file.as_raw_fd(), access).unwrap()
    }
}

impl DmabufMr {
    pub fn key(&self) -> u32 {
        key_of(self.mr)
    }

    /// Returns the fields `addr` and `length` of the region.
    pub fn fields(&self) -> (usize, usize) {
        unsafe { ((*self.mr).addr.addr(), (*self.mr).length) }
    }

    pub fn address(&self, from: u64) -> u64 {
        self.part.iova + from
    }

    pub fn sge(&self, from: u64, length: u32) -> ibv_sge {
        ibv_sge { addr: self.address(from), length, lkey: self.key() }
    }
}

impl Drop for DmabufMr {
    fn drop(&mut self) {
        deregister(self.mr);
    }
}
