//! Registrations with a mask of attributes, and buffers that libibverbs allocates. Both are newer than the headers of
//! `rdma-sys`, so this module implements them with older verbs.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_sys::{Errno, ibv_mr, ibv_pd};

use crate::provider::verbs_of;
use crate::refusal::unsupported_null;

/// `struct ibv_mr_init_attr`. A field is initialised if its bit in the mask is set.
#[repr(C)]
struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buffer,
}

// `enum ibv_mr_init_attr_mask`
const IOVA: u64 = 1;
const ADDR: u64 = 1 << 1;
const FD: u64 = 1 << 2;
const FD_OFFSET: u64 = 1 << 3;
const BUF: u64 = 1 << 5;

/// This library's `struct ibv_buf`. Programs have only pointers to it.
struct Buffer {
    pd: *mut ibv_pd,
    memory: *mut c_void,
    size: usize,
    layout: Layout,
}

/// Memory that [`reg_mr_ex`] registers.
enum Memory {
    Mapped { addr: *mut c_void, iova: Option<u64> },
    File { fd: c_int, offset: u64, iova: u64 },
}

/// Returns the memory that the attributes describe.
///
/// # Safety
/// The fields that `comp_mask` names are initialised.
unsafe fn memory(pd: *mut ibv_pd, attributes: *const MrInitAttr) -> Result<Memory, Errno> {
    // SAFETY: the mask is always initialised (SAFETY.md F1).
    let mut mask = unsafe { (*attributes).comp_mask };
    let has = |mask: u64, bit: u64| mask & bit != 0;
    // SAFETY: this function's contract.
    let addr = has(mask, ADDR).then(|| unsafe { (*attributes).addr });
    if has(mask, BUF) {
        // SAFETY: this function's contract.
        let buffer = unsafe { (*attributes).buf };
        // SAFETY: the caller passes a live buffer of this library (SAFETY.md F1).
        let buffer = unsafe { &*buffer };
        // SAFETY: the length is always initialised (SAFETY.md F1).
        let length = unsafe { (*attributes).length };
        let offset = addr.and_then(|addr| addr.addr().checked_sub(buffer.memory.addr()));
        let end = offset.and_then(|offset| offset.checked_add(length));
        let fits = end.is_some_and(|end| end <= buffer.size);
        if !fits || buffer.pd != pd || has(mask, FD | FD_OFFSET) {
            return Err(Errno::EINVAL);
        }
        mask &= !BUF;
    }
    if mask & !(IOVA | ADDR | FD | FD_OFFSET) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: this function's contract.
    let iova = has(mask, IOVA).then(|| unsafe { (*attributes).iova });
    match (addr, iova) {
        (None, Some(iova)) if has(mask, FD) && has(mask, FD_OFFSET) => {
            // SAFETY: this function's contract.
            let fd = unsafe { (*attributes).fd };
            // SAFETY: this function's contract.
            let offset = unsafe { (*attributes).fd_offset };
            Ok(Memory::File { fd, offset, iova })
        }
        (Some(addr), iova) if !has(mask, FD | FD_OFFSET) => Ok(Memory::Mapped { addr, iova }),
        _ => Err(Errno::EINVAL),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attributes: *mut MrInitAttr) -> *mut ibv_mr {
    // SAFETY: the caller initialises the fields that the mask names (SAFETY.md F1).
    let memory = match unsafe { memory(pd, attributes) } {
        Ok(memory) => memory,
        Err(errno) => {
            errno.set();
            return ptr::null_mut();
        }
    };
    // SAFETY: the length is always initialised (SAFETY.md F1).
    let length = unsafe { (*attributes).length };
    // SAFETY: the access is always initialised (SAFETY.md F1).
    let access = unsafe { (*attributes).access };
    // SAFETY: the caller passes a live domain (SAFETY.md F1).
    let verbs = unsafe { verbs_of(pd) };
    match memory {
        Memory::Mapped { addr, iova } => {
            let Some(reg_mr_iova2) = verbs.reg_mr_iova2 else { return unsupported_null() };
            let iova = iova.unwrap_or(addr.addr() as u64);
            // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
            unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
        }
        Memory::File { fd, offset, iova } => {
            let Some(reg_dmabuf_mr) = verbs.reg_dmabuf_mr else { return unsupported_null() };
            // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
            unsafe { reg_dmabuf_mr(pd, offset, length, iova, fd, access) }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attributes = MrInitAttr {
        length,
        access,
        comp_mask: BUF | ADDR,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf: buf.cast(),
    };
    // SAFETY: all fields are initialised, and the rest are the caller's promises (SAFETY.md F1).
    unsafe { ibv_reg_mr_ex(pd, &raw mut attributes) }
}

/// Allocates zeroed pages.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut c_void,
) -> *mut c_void {
    let no_memory = || {
        Errno::ENOMEM.set();
        ptr::null_mut()
    };
    let Ok(layout) = Layout::from_size_align(size.max(1), rustix::param::page_size()) else {
        return no_memory();
    };
    // SAFETY: the size is not zero (SAFETY.md F15).
    let memory = unsafe { alloc_zeroed(layout) }.cast::<c_void>();
    if memory.is_null() {
        return no_memory();
    }
    let buffer = Box::into_raw(Box::new(Buffer { pd, memory, size, layout }));
    // SAFETY: the caller passes a valid pointer for the handle (SAFETY.md F1).
    unsafe { buf.write(buffer.cast()) };
    memory
}

/// Fails, because no buffer has a file.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut c_void) -> c_int {
    Errno::ENODATA.set();
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buf: *mut c_void) {
    // SAFETY: `ibv_alloc_buf` has made the handle from a box, and the caller frees it once (SAFETY.md F1).
    let buffer = unsafe { Box::from_raw(buf.cast::<Buffer>()) };
    // SAFETY: `ibv_alloc_buf` has allocated the memory with this layout, and nothing uses it any more (SAFETY.md F1).
    unsafe { dealloc(buffer.memory.cast(), buffer.layout) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_of_the_buffer_is_accepted() {
        let (mut buf, pd) = (ptr::null_mut(), ptr::dangling_mut::<ibv_pd>());
        // SAFETY: the pointer for the handle is valid. The domain is only compared.
        let memory_of = unsafe { ibv_alloc_buf(pd, 100, &raw mut buf) };
        assert_eq!(memory_of.addr() % rustix::param::page_size(), 0);
        let check = |pd, offset, length| {
            let attributes = MrInitAttr {
                length,
                access: 0,
                comp_mask: BUF | ADDR,
                iova: 0,
                addr: memory_of.wrapping_byte_add(offset),
                fd: -1,
                fd_offset: 0,
                dmah: ptr::null_mut(),
                buf: buf.cast(),
            };
            // SAFETY: all fields are initialised.
            unsafe { memory(pd, &raw const attributes) }.err()
        };
        assert_eq!(check(pd, 0, 100), None);
        assert_eq!(check(pd, 60, 40), None);
        assert_eq!(check(pd, 60, 41), Some(Errno::EINVAL));
        assert_eq!(check(pd, 60, usize::MAX), Some(Errno::EINVAL));
        assert_eq!(check(ptr::null_mut(), 0, 100), Some(Errno::EINVAL));
        // SAFETY: the handle is freed once.
        unsafe { ibv_free_buf(buf) };
    }
}
