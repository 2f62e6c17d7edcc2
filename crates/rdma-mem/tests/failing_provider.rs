//! What happens when a provider refuses to let go: the software device with a function that fails.

#![allow(unsafe_code)]

use std::alloc::{Layout, dealloc};
use std::cell::Cell;
use std::ffi::c_int;
use std::slice;

use rdma_mem::{AccessFlags, DeviceList, Errno, Error, OwnedRegion, ProtectionDomain};
use rdma_sys::{Verbs, ibv_mr, ibv_pd};

thread_local! {
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

/// Whether a call is to fail; counts down.
fn refuse() -> bool {
    let left = REFUSED.get();
    REFUSED.set(left.saturating_sub(1));
    left > 0
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    if refuse() {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().dereg_mr)(mr) }
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    if refuse() {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().dealloc_pd)(pd) }
}

fn pd() -> ProtectionDomain {
    rdma_soft::install();
    let mut verbs = *rdma_soft::verbs();
    verbs.dereg_mr = dereg_mr;
    verbs.dealloc_pd = dealloc_pd;
    let verbs: &'static Verbs = Box::leak(Box::new(verbs));
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.get(0).unwrap().open().unwrap().allocate_pd().unwrap()
}

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Verb(error) if error.errno == Errno::EBUSY)
}

#[test]
fn a_region_that_cannot_be_closed_comes_back_whole() {
    let pd = pd();
    let mut region = pd.allocate_region(64).unwrap();
    region.fill(5);
    REFUSED.set(1);
    let (region, error) = region.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    assert_eq!(&*region, [5; 64]);
    assert_eq!(&*region.close().unwrap(), [5; 64]);

    let access = AccessFlags::new().with_remote_read();
    let region = pd.allocate_shared_region(64, access).unwrap();
    REFUSED.set(1);
    let (region, error) = region.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    region.write(0, b"still").unwrap();
    region.close().unwrap();
}

#[test]
fn memory_of_a_region_that_stays_registered_is_never_freed() {
    let region = pd().allocate_region(4096).unwrap();
    let (memory, mr) = (region.as_ptr().cast_mut(), region.as_raw());
    REFUSED.set(1);
    drop::<OwnedRegion>(region);
    // SAFETY: SAFETY.md F8: leaked, because the device may still write it.
    assert_eq!(unsafe { slice::from_raw_parts(memory, 4096) }, [0; 4096]);
    // SAFETY: SAFETY.md F1: the refused call did nothing, so the region is live.
    assert_eq!(unsafe { dereg_mr(mr) }, 0);
    let layout = Layout::from_size_align(4096, 4096).unwrap();
    // SAFETY: SAFETY.md F16: deregistered now, and this is how regions allocate.
    unsafe { dealloc(memory, layout) };
}

#[test]
fn a_domain_that_cannot_be_closed_comes_back() {
    let domain = pd();
    REFUSED.set(1);
    let (domain, error) = domain.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    domain.allocate_region(64).unwrap();
    domain.close().unwrap();
}
