//! The inline functions of memory windows.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use rdma_sys::{
    Errno, ibv_alloc_mw, ibv_bind_mw, ibv_context, ibv_dealloc_mw, ibv_inc_rkey, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp,
};

unsafe extern "C" fn alloc(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the PD is the caller's (SAFETY.md F1).
    unsafe { (*pd).handle = kind.0 };
    ptr::without_provenance_mut(0x1000)
}

unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window is the caller's (SAFETY.md F1).
    unsafe { (*mw).handle = 99 };
    libc::EBUSY
}

unsafe extern "C" fn bind(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: all three are the caller's, here and below (SAFETY.md F1).
    let wr_id = unsafe { (*bind).wr_id };
    // SAFETY: as above.
    unsafe { (*qp).handle = u32::try_from(wr_id).unwrap() };
    // SAFETY: as above.
    unsafe { (*mw).rkey = 7 };
    libc::ENOMEM
}

fn context() -> Box<ibv_context> {
    let mut context = Box::new(ibv_context::default());
    context.ops.alloc_mw = Some(alloc);
    context.ops.dealloc_mw = Some(dealloc);
    context.ops.bind_mw = Some(bind);
    context
}

#[test]
fn windows_come_from_the_contexts_own_functions() {
    let mut context = context();
    let mut pd = ibv_pd { context: &raw mut *context, handle: 0 };
    // SAFETY: all objects are alive and fit the functions above, here and below (SAFETY.md F1).
    let made = unsafe { ibv_alloc_mw(&raw mut pd, ibv_mw_type::IBV_MW_TYPE_2) };
    assert_eq!((made.addr(), pd.handle), (0x1000, 2));
    let mut mw = ibv_mw { context: &raw mut *context, ..ibv_mw::default() };
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_dealloc_mw(&raw mut mw) }, libc::EBUSY);
    assert_eq!(mw.handle, 99);
}

#[test]
fn windows_are_not_supported_on_a_device_without_them() {
    let mut context = ibv_context::default();
    let mut pd = ibv_pd { context: &raw mut context, handle: 0 };
    // SAFETY: the PD and its context are alive (SAFETY.md F1).
    let made = unsafe { ibv_alloc_mw(&raw mut pd, ibv_mw_type::IBV_MW_TYPE_1) };
    assert_eq!(Errno::check_null(made), Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_bind_that_cannot_be_right_never_reaches_the_provider() {
    let mut context = context();
    let context = &raw mut *context;
    let (mut pd, mut other) = (ibv_pd::default(), ibv_pd::default());
    let (own, foreign) = (&raw mut pd, &raw mut other);
    let mr_of = |pd| ibv_mr { pd, ..ibv_mr::default() };
    let (mut own_mr, mut foreign_mr) = (mr_of(own), mr_of(foreign));
    let (own_mr, foreign_mr) = (&raw mut own_mr, &raw mut foreign_mr);
    let null = ptr::null_mut();
    let (one, two) = (ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2);
    for (type_, mr, addr, length, returned) in [
        (one, own_mr, 64, 16, libc::ENOMEM),
        (one, own_mr, 64, 0, libc::ENOMEM),
        (one, null, 0, 0, libc::ENOMEM),
        (two, own_mr, 64, 16, libc::EINVAL),
        (one, null, 64, 0, libc::EINVAL),
        (one, null, 0, 16, libc::EINVAL),
        (one, foreign_mr, 64, 16, libc::EPERM),
    ] {
        let mut qp = ibv_qp::default();
        let mut mw = ibv_mw { context, pd: own, type_, ..ibv_mw::default() };
        let mut request = ibv_mw_bind { wr_id: 42, ..ibv_mw_bind::default() };
        request.bind_info.mr = mr;
        (request.bind_info.addr, request.bind_info.length) = (addr, length);
        // SAFETY: all objects are alive and fit the function above (SAFETY.md F1).
        let got = unsafe { ibv_bind_mw(&raw mut qp, &raw mut mw, &raw mut request) };
        assert_eq!(got, returned, "{addr} {length}");
        let reached = returned == libc::ENOMEM;
        assert_eq!((qp.handle, mw.rkey), if reached { (42, 7) } else { (0, 0) });
    }
}

#[test]
fn the_next_key_differs_in_its_low_byte_alone() {
    assert_eq!(ibv_inc_rkey(0x0102_0304), 0x0102_0305);
    assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
    assert_eq!(ibv_inc_rkey(0), 1);
}
