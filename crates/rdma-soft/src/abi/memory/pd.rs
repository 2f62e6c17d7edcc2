//! Protection domains.

use std::ffi::c_int;

use rdma_sys::{ibv_context, ibv_pd};

use crate::abi::block::{
    Children, PdBlock, context_domains, device_of, hold_context, pd_children, release_context,
};
use crate::abi::errno::{number, pointer};
use crate::faults::Verb;
use crate::memory::protection::ProtectionDomain;
use crate::sync::locked;

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    let taken = device
        .count_call(Verb::AllocPd)
        .and_then(|()| device.protection_domains.take(device.limits.max_pd));
    pointer(taken.map(|()| {
        let pd = ProtectionDomain::new(&device.memory);
        // SAFETY: as above.
        unsafe { hold_context(context) };
        // SAFETY: as above.
        locked(unsafe { context_domains(context) }).insert(pd.number);
        let verbs = ibv_pd { context, handle: (pd.number & 0xffff_ffff) as u32 };
        Box::into_raw(Box::new(PdBlock { verbs, pd, device, children: Children::default() })).cast()
    }))
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let free = unsafe { pd_children(pd) }.none();
    number(free.map(|()| {
        // SAFETY: `alloc_pd` made the domain, and the caller gives it up (SAFETY.md F11).
        let block = unsafe { Box::from_raw(pd.cast::<PdBlock>()) };
        block.device.protection_domains.give();
        // SAFETY: the domain holds its context (SAFETY.md F11).
        locked(unsafe { context_domains(block.verbs.context) }).remove(&block.pd.number);
        // SAFETY: as above, and the domain does not use its context after this.
        unsafe { release_context(block.verbs.context) };
    }))
}
