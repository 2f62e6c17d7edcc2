//! Windows that are refused, or reach beyond their bounds.

use std::ffi::c_int;
use std::ptr;

use rdma_mem::Errno;
use rdma_sys::{ibv_mw, ibv_mw_type, ibv_pd, ibv_send_wr, ibv_wr_opcode};

use super::{Call, Object, Provider, of, ops};

impl Provider {
    /// From now on, windows do not keep peers within their bounds.
    pub(crate) fn have_unbounded_windows(&self) {
        self.state().is_unbounded = true;
    }
}

/// The window that a request binds, and the key of its region.
pub(super) fn bind(request: &mut ibv_send_wr, provider: &Provider) -> (usize, u32) {
    if request.opcode != ibv_wr_opcode::IBV_WR_BIND_MW {
        return (0, 0);
    }
    // SAFETY: SAFETY.md F12: the union member of a bind.
    let bind = unsafe { &mut request.__bindgen_anon_2.bind_mw };
    // SAFETY: SAFETY.md F1: the caller of the post keeps the region of a bind registered until it has completed.
    let region = unsafe { &*bind.bind_info.mr };
    if provider.state().is_unbounded {
        (bind.bind_info.addr, bind.bind_info.length) = (region.addr as u64, region.length as u64);
    }
    (bind.mw as usize, region.lkey)
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: SAFETY.md F1: a live object.
    let provider = of(unsafe { (*pd).context });
    if provider.refuses(Call::AllocateWindow) {
        Errno::ENOMEM.set();
        return ptr::null_mut();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let made = unsafe { (ops().allocate)(pd, kind) };
    if !made.is_null() {
        provider.made(Object::Window);
    }
    made
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: SAFETY.md F1: a live object.
    let provider = of(unsafe { (*mw).context });
    let mut state = provider.state();
    if let Some(lent) = state.lent.iter().find(|lent| lent.window == mw as usize) {
        let wrong = format!("a window is deallocated while {:#x} binds it", lent.wr_id);
        state.wrongs.push(wrong);
    }
    drop(state);
    if provider.refuses(Call::DeallocateWindow) {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let returned = unsafe { (ops().deallocate)(mw) };
    if returned == 0 {
        provider.destroyed(Object::Window, mw as usize);
    }
    returned
}
