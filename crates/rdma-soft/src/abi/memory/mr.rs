//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd};

use crate::abi::block::{MrBlock, pd_children, pd_device, pd_of, registration_of};
use crate::abi::errno::{number, pointer};
use crate::engine::Refusal;
use crate::faults::Verb;
use crate::memory::import::{self, Imported};
use crate::memory::probe::Access;
use crate::memory::protection::{ProtectionDomain, Registration};

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes valid arguments (SAFETY.md F1).
    unsafe { reg_mr_iova2(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes valid arguments (SAFETY.md F1).
    unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let zero_based = access & ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0;
    let iova = if zero_based { 0 } else { iova };
    // The device will access this memory using only its address (SAFETY.md F7).
    let address = addr.expose_provenance() as u64;
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let domain = unsafe { pd_of(pd) };
    // SAFETY: as above.
    let counted = unsafe { pd_device(pd) }.count_call(Verb::RegMr);
    let registered = counted.and_then(|()| domain.register(address, length as u64, iova, access));
    pointer(registered.map(|registration| {
        // SAFETY: as above.
        unsafe { region(pd, addr, length, registration, None) }
    }))
}

/// Creates the object for a new registration.
///
/// # Safety
///
/// The protection domain is live and belongs to this provider.
unsafe fn region(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    registration: Registration,
    imported: Option<Imported>,
) -> *mut ibv_mr {
    // SAFETY: by this function's contract.
    unsafe { pd_children(pd) }.add();
    let verbs = ibv_mr {
        // SAFETY: as above; nothing writes the C part of a protection domain after it was made.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: registration.key,
        lkey: registration.key,
        rkey: registration.key,
    };
    Box::into_raw(Box::new(MrBlock { verbs, registration, imported })).cast()
}

/// The access flags that the kernel accepts for a dma-buf (`UVERBS_METHOD_REG_DMABUF_MR`).
const DMABUF_ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let domain = unsafe { pd_of(pd) };
    let access = access.cast_unsigned();
    // SAFETY: as above.
    let device = unsafe { pd_device(pd) };
    if !device.limits.features.dmabuf {
        return pointer(Err(Refusal::Unsupported));
    }
    let counted = device.count_call(Verb::RegMr);
    let registered = counted.and_then(|()| import(domain, offset, length, iova, fd, access));
    pointer(registered.map(|(registration, imported)| {
        // libibverbs also stores the offset here, because a dma-buf has no address.
        let addr = ptr::without_provenance_mut(usize::try_from(offset).unwrap_or(0));
        // SAFETY: as above.
        unsafe { region(pd, addr, length, registration, Some(imported)) }
    }))
}

fn import(
    domain: &ProtectionDomain,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Result<(Registration, Imported), Refusal> {
    let checked = Access::check(access)?;
    let page = rustix::param::page_size() as u64;
    if access & !DMABUF_ACCESS != 0 || !(offset ^ iova).is_multiple_of(page) {
        return Err(Refusal::Invalid);
    }
    let file = import::open_file(fd)?;
    let imported = Imported::map(file, offset, length, checked.is_writable())?;
    let registration = domain.register(imported.address(), length as u64, iova, access)?;
    Ok((registration, imported))
}

/// Not a verb of libibverbs; see [`Verbs::note_mapped`](rdma_sys::Verbs::note_mapped).
pub(crate) unsafe extern "C" fn note_mapped(mr: *mut ibv_mr) {
    // SAFETY: the caller passes a live region (SAFETY.md F1), and promises that its memory stays mapped (F29).
    let registration = unsafe { *registration_of(mr) };
    // SAFETY: as above.
    let pd = unsafe { (*mr).pd };
    // SAFETY: a protection domain outlives its regions (SAFETY.md F11).
    unsafe { pd_of(pd) }.note_mapped(registration);
}

/// Not a verb of libibverbs; see [`Verbs::wants_file`](rdma_sys::Verbs::wants_file).
pub(crate) unsafe extern "C" fn wants_file(pd: *mut ibv_pd, length: usize, access: u32) -> c_int {
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let device = unsafe { pd_device(pd) };
    device.wants_file(length as u64, access).into()
}

/// Not a verb of libibverbs; see [`Verbs::note_file`](rdma_sys::Verbs::note_file).
pub(crate) unsafe extern "C" fn note_file(mr: *mut ibv_mr, file: c_int) {
    // SAFETY: the caller passes a live region (SAFETY.md F1).
    let registration = unsafe { *registration_of(mr) };
    // SAFETY: as above.
    let pd = unsafe { (*mr).pd };
    // SAFETY: the caller passes an open file, which it closes after this call (SAFETY.md F1).
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: a protection domain outlives its regions (SAFETY.md F11).
    unsafe { pd_device(pd) }.keep_file(registration.key, file);
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes a live region (SAFETY.md F1).
    let registration = unsafe { *registration_of(mr) };
    // SAFETY: as above.
    let pd = unsafe { (*mr).pd };
    // SAFETY: a protection domain outlives its regions (SAFETY.md F11).
    unsafe { pd_device(pd) }.end_file(registration.key);
    // SAFETY: as above.
    let deregistered = unsafe { pd_of(pd) }.deregister(registration);
    number(deregistered.map(|()| {
        // SAFETY: `region` made the block, and the caller gives it up (SAFETY.md F11).
        drop(unsafe { Box::from_raw(mr.cast::<MrBlock>()) });
        // SAFETY: as above.
        unsafe { pd_children(pd) }.remove();
    }))
}
