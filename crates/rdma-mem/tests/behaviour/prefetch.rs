//! Advice about memory: its arguments, and the error of a device that does not support it.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::slice;

use rdma_mem::{Errno, Error, GatherElement, Prefetch, ProtectionDomain, open_device};
use rdma_sys::{ib_uverbs_advise_mr_advice, ibv_pd, ibv_sge, verbs_get_ctx};

thread_local! {
    static CALLS: RefCell<Vec<(u32, u32, Vec<ibv_sge>)>> = const { RefCell::new(Vec::new()) };
    static RETURNED: Cell<c_int> = const { Cell::new(0) };
}

unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let list = unsafe { slice::from_raw_parts(list, count as usize) };
    CALLS.with_borrow_mut(|calls| calls.push((advice.0, flags, list.to_vec())));
    RETURNED.get()
}

fn domain() -> ProtectionDomain {
    rdma_soft::install();
    open_device("soft0").unwrap().allocate_pd().unwrap()
}

/// A domain of a context that takes advice.
fn advised_domain() -> ProtectionDomain {
    let pd = domain();
    // SAFETY: SAFETY.md F1: a live context.
    let context = unsafe { verbs_get_ctx(pd.context().as_raw()) };
    // SAFETY: SAFETY.md F1: the software device's extended context, which no other code uses yet.
    unsafe { (*context).advise_mr = Some(advise_mr) };
    pd
}

#[test]
fn a_device_without_advice_is_named() {
    let pd = domain();
    let region = pd.allocate_region(64).unwrap();
    let elements = [region.as_slice().gather_element()];
    let Err(Error::Verb(error)) = pd.prefetch(&elements, Prefetch::Read, true) else { panic!() };
    assert_eq!((error.verb, error.errno), ("ibv_advise_mr", Errno::EOPNOTSUPP));
    assert!(error.to_string().contains("`soft0` does not support memory advice"), "{error}");
}

#[test]
fn advice_reaches_the_device_with_its_elements() {
    let pd = advised_domain();
    let region = pd.allocate_region(64).unwrap();
    let (first, second) = region.as_slice().split_at(16);
    let elements = [first.gather_element(), second.gather_element()];
    let parts = |sge: &ibv_sge| (sge.addr, sge.length, sge.lkey);
    let raw: Vec<_> = elements.iter().map(|element| parts(element.as_raw())).collect();
    let purposes = [Prefetch::Read, Prefetch::Write, Prefetch::ReadPresent];
    for (advice, purpose) in (0..).zip(purposes) {
        for wait in [false, true] {
            pd.prefetch(&elements, purpose, wait).unwrap();
            let calls = CALLS.take();
            assert_eq!((calls.len(), calls[0].0, calls[0].1), (1, advice, u32::from(wait)));
            assert_eq!(calls[0].2.iter().map(parts).collect::<Vec<_>>(), raw);
        }
    }
}

#[test]
fn refused_advice_has_a_hint() {
    let pd = advised_domain();
    let region = pd.allocate_region(64).unwrap();
    let elements: [GatherElement<'_>; 1] = [region.as_slice().gather_element()];
    for (errno, hint) in [
        (Errno::EINVAL, "with_on_demand"),
        (Errno::EFAULT, "not mapped"),
        (Errno::EPERM, "another domain"),
    ] {
        RETURNED.set(errno.raw());
        let error = pd.prefetch(&elements, Prefetch::Write, false).unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
}
