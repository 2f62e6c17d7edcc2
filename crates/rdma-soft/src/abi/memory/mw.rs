//! Memory windows.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{
    ibv_inc_rkey, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp,
    ibv_send_flags,
};

use crate::abi::block::{MwBlock, pd_children, pd_device, pd_of, queue_pair_of, window_of};
use crate::abi::errno::{number, pointer};
use crate::engine::Refusal;
use crate::engine::requester::post::post_each;
use crate::engine::requester::request::{Payload, Request};
use crate::faults::Verb;
use crate::memory::window::{Bind, WindowKind};

/// The flags that a bind request may have (man `ibv_bind_mw`).
const BIND_FLAGS: u32 = ibv_send_flags::IBV_SEND_FENCE.0 | ibv_send_flags::IBV_SEND_SIGNALED.0;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    let kind = match type_ {
        ibv_mw_type::IBV_MW_TYPE_1 => Ok(WindowKind::One),
        ibv_mw_type::IBV_MW_TYPE_2 => Ok(WindowKind::Two),
        _ => Err(Refusal::Invalid),
    };
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let domain = unsafe { pd_of(pd) };
    // SAFETY: as above.
    let counted = unsafe { pd_device(pd) }.count_call(Verb::AllocMw);
    let allocated = counted.and(kind).and_then(|kind| domain.allocate_window(kind));
    pointer(allocated.map(|window| {
        // SAFETY: as above.
        unsafe { pd_children(pd) }.add();
        let verbs = ibv_mw {
            // SAFETY: as above; nothing writes the C part of a protection domain after it was made.
            context: unsafe { (*pd).context },
            pd,
            rkey: window.key,
            handle: window.number,
            type_,
        };
        Box::into_raw(Box::new(MwBlock { verbs, window })).cast()
    }))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: `alloc_mw` made the window, and the caller gives it up (SAFETY.md F11).
    let block = unsafe { Box::from_raw(mw.cast::<MwBlock>()) };
    let pd = block.verbs.pd;
    // SAFETY: a protection domain outlives its windows (SAFETY.md F11).
    unsafe { pd_of(pd) }.deallocate_window(block.window);
    // SAFETY: as above.
    unsafe { pd_children(pd) }.remove();
    0
}

pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    request: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller passes a readable request (SAFETY.md F1).
    let request = unsafe { request.read() };
    // SAFETY: the caller passes a live window (SAFETY.md F1), and it is at the beginning of a live block (F11).
    let rkey = unsafe { &raw mut (*mw).rkey };
    // SAFETY: as above, and the field is aligned (SAFETY.md F5). Other threads that bind the same window may write it
    // at the same time. Programs read the key non-atomically, but only while no thread binds the window (F9).
    let rkey = unsafe { AtomicU32::from_ptr(rkey) };
    let key = ibv_inc_rkey(rkey.load(Ordering::Relaxed));
    if request.send_flags & !BIND_FLAGS != 0 {
        return number(Err(Refusal::Invalid));
    }
    let signaled = request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
    // SAFETY: the caller passes a live window, and a region that is live or NULL (SAFETY.md F1).
    let bind = unsafe { bind(mw, WindowKind::One, key, &request.bind_info) };
    // SAFETY: the caller passes a live queue pair (SAFETY.md F1).
    let queue_pair = unsafe { queue_pair_of(qp) };
    let posted = bind.and_then(|bind| {
        let (wr_id, operation) = (request.wr_id, bind.into_operation());
        let request = Request { wr_id, signaled, operation, ..Request::EMPTY };
        let mut list = Some(Ok((request, Payload::keyed(&[]))));
        post_each(queue_pair, || list.take())
    });
    if posted.is_ok() {
        rkey.store(key, Ordering::Relaxed);
    }
    number(posted)
}

/// Converts a bind that a program has requested.
///
/// # Safety
///
/// The window and the region are each NULL, or they are live and belong to this provider.
pub(crate) unsafe fn bind(
    mw: *mut ibv_mw,
    kind: WindowKind,
    key: u32,
    info: &ibv_mw_bind_info,
) -> Result<Bind, Refusal> {
    if mw.is_null() {
        return Err(Refusal::Invalid);
    }
    // SAFETY: by this function's contract; nothing writes the type after it was set (SAFETY.md F11).
    let type_ = unsafe { (*mw).type_ };
    if (type_ == ibv_mw_type::IBV_MW_TYPE_1) != (kind == WindowKind::One) {
        return Err(Refusal::Invalid);
    }
    // NULL becomes 0, which is never the key of a region.
    let region = match info.mr.is_null() {
        true => 0,
        // SAFETY: by this function's contract; nothing writes the key after it was set (SAFETY.md F11).
        false => unsafe { (*info.mr).lkey },
    };
    Ok(Bind {
        // SAFETY: by this function's contract.
        window: unsafe { window_of(mw) }.number,
        key,
        region,
        access: info.mw_access_flags,
        address: info.addr,
        length: info.length,
    })
}
