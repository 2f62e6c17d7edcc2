//! The inline functions against contexts of several ages.

#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
    ptr,
};

use rdma_sys::{
    _compat_ibv_port_attr, Errno, Verbs, ibv_context, ibv_cq, ibv_device_attr, ibv_device_attr_ex,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_post_recv, ibv_post_send,
    ibv_post_srq_recv, ibv_qp, ibv_query_device_ex, ibv_query_device_ex_input, ibv_query_gid_ex,
    ibv_query_gid_table, ibv_query_port, ibv_recv_wr, ibv_reg_mr, ibv_req_notify_cq, ibv_send_wr,
    ibv_srq, ibv_wc, verbs_context, verbs_get_ctx,
};

/// An extended context as a provider allocates it.
struct Provider(Box<verbs_context>);

impl Provider {
    fn new(set: impl FnOnce(&mut verbs_context)) -> Self {
        let mut extended = Box::new(verbs_context::default());
        extended.sz = size_of::<verbs_context>();
        extended.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        set(&mut extended);
        Self(extended)
    }

    fn context(&mut self) -> *mut ibv_context {
        let extended = &raw mut *self.0;
        extended.wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }
}

unsafe extern "C" fn extended_port(
    _context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ibv_port_attr>());
    // SAFETY: the attributes are the caller's (SAFETY.md F1).
    unsafe { (*attr).lid = 100 + u16::from(port_num) };
    0
}

unsafe extern "C" fn classic_port(
    _context: *mut ibv_context,
    _port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the attributes are the caller's; the classic ones are the first 48 bytes of the
    // others (SAFETY.md F5).
    unsafe { attr.cast::<u8>().write_bytes(1, 48) };
    0
}

fn classic() -> Verbs {
    let mut verbs = Verbs::unsupported();
    verbs.query_port = classic_port;
    verbs
}

fn query_port(provider: &mut Provider) -> ibv_port_attr {
    let mut attr = ibv_port_attr { port_cap_flags2: 0xffff, ..ibv_port_attr::default() };
    // SAFETY: the context is alive and the functions above fit it (SAFETY.md F1).
    let returned = unsafe { ibv_query_port(&classic(), provider.context(), 7, &raw mut attr) };
    assert_eq!(Errno::check(returned), Ok(()));
    attr
}

#[test]
fn query_port_uses_the_extended_function() {
    let mut provider = Provider::new(|it| it.query_port = Some(extended_port));
    assert_eq!(query_port(&mut provider).lid, 107);
}

#[test]
fn query_port_falls_back_where_the_function_is_null() {
    let attr = query_port(&mut Provider::new(|_| ()));
    assert_eq!((attr.lid, attr.port_cap_flags2), (0x0101, 0));
}

#[test]
fn query_port_falls_back_where_the_struct_ends_before_the_function() {
    let reach = size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
    for (size, lid) in [(reach, 107), (reach - 1, 0x0101)] {
        let mut provider = Provider::new(|it| {
            it.query_port = Some(extended_port);
            it.sz = size;
        });
        assert_eq!(query_port(&mut provider).lid, lid, "a struct of {size} bytes");
    }
}

#[test]
fn query_port_falls_back_where_the_context_is_not_extended() {
    let mut provider = Provider::new(|it| {
        it.query_port = Some(extended_port);
        it.context.abi_compat = ptr::null_mut();
    });
    assert_eq!(query_port(&mut provider).lid, 0x0101);
    // SAFETY: the context is alive (SAFETY.md F1).
    assert!(unsafe { verbs_get_ctx(provider.context()) }.is_null());
}

unsafe extern "C" fn no_extended_device(
    _context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    _attr: *mut ibv_device_attr_ex,
    _size: usize,
) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn busy_device(
    _context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    _attr: *mut ibv_device_attr_ex,
    _size: usize,
) -> c_int {
    libc::EBUSY
}

unsafe extern "C" fn classic_device(
    _context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the attributes are the caller's (SAFETY.md F1).
    unsafe { (*attr).max_qp = 5 };
    0
}

#[test]
fn query_device_ex_falls_back_only_where_it_is_not_supported() {
    let mut verbs = Verbs::unsupported();
    verbs.query_device = classic_device;
    let query = |provider: &mut Provider, comp_mask| {
        let input = ibv_query_device_ex_input { comp_mask };
        let mut attr = ibv_device_attr_ex { raw_packet_caps: 9, ..ibv_device_attr_ex::default() };
        let context = provider.context();
        // SAFETY: the context is alive and the functions above fit it (SAFETY.md F1).
        let returned =
            unsafe { ibv_query_device_ex(&verbs, context, &raw const input, &raw mut attr) };
        (Errno::check(returned), attr.orig_attr.max_qp, attr.raw_packet_caps)
    };
    let mut without = Provider::new(|_| ());
    let mut refusing = Provider::new(|it| it.query_device_ex = Some(no_extended_device));
    let mut busy = Provider::new(|it| it.query_device_ex = Some(busy_device));
    assert_eq!(query(&mut without, 0), (Ok(()), 5, 0));
    assert_eq!(query(&mut refusing, 0), (Ok(()), 5, 0));
    assert_eq!(query(&mut busy, 0), (Err(Errno::EBUSY), 0, 9));
    assert_eq!(query(&mut without, 1), (Err(Errno::EINVAL), 0, 9));
}

unsafe extern "C" fn poll(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the CQ is the caller's (SAFETY.md F1).
    let handle = unsafe { (*cq).handle };
    // SAFETY: the completion is the caller's (SAFETY.md F1).
    unsafe { (*wc).wr_id = u64::from(handle) };
    entries
}

unsafe extern "C" fn notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the CQ is the caller's (SAFETY.md F1).
    unsafe { (*cq).cqe = solicited_only };
    0
}

unsafe extern "C" fn send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the QP is the caller's (SAFETY.md F1).
    unsafe { (*qp).handle = 1 };
    // SAFETY: the place is the caller's (SAFETY.md F1).
    unsafe { bad_wr.write(wr) };
    libc::ENOMEM
}

unsafe extern "C" fn receive_shared(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's SRQ and its place for the refused request (SAFETY.md F1).
    unsafe { (*srq).handle = 3 };
    // SAFETY: as above.
    unsafe { *bad_wr = wr };
    libc::ENOMEM
}

unsafe extern "C" fn receive(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the QP is the caller's (SAFETY.md F1).
    unsafe { (*qp).handle = 2 };
    // SAFETY: the place is the caller's (SAFETY.md F1).
    unsafe { bad_wr.write(wr) };
    libc::EINVAL
}

#[test]
fn the_data_path_goes_through_the_contexts_own_functions() {
    let mut provider = Provider::new(|it| {
        it.context.ops.poll_cq = Some(poll);
        it.context.ops.req_notify_cq = Some(notify);
        it.context.ops.post_send = Some(send);
        it.context.ops.post_recv = Some(receive);
        it.context.ops.post_srq_recv = Some(receive_shared);
    });
    let context = provider.context();
    let mut cq = ibv_cq { context, handle: 42, ..ibv_cq::default() };
    let mut wc = ibv_wc::default();
    // SAFETY: all objects are alive and fit the functions above, here and below (SAFETY.md F1).
    assert_eq!(unsafe { ibv_poll_cq(&raw mut cq, 1, &raw mut wc) }, 1);
    assert_eq!(wc.wr_id, 42);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_req_notify_cq(&raw mut cq, 1) }, 0);
    assert_eq!(cq.cqe, 1);

    let mut qp = ibv_qp { context, ..ibv_qp::default() };
    let (mut wr, mut bad_wr) = (ibv_send_wr::default(), ptr::null_mut());
    // SAFETY: as above.
    let returned = unsafe { ibv_post_send(&raw mut qp, &raw mut wr, &raw mut bad_wr) };
    assert_eq!((returned, qp.handle, bad_wr), (libc::ENOMEM, 1, &raw mut wr));
    let (mut wr, mut bad_wr) = (ibv_recv_wr::default(), ptr::null_mut());
    // SAFETY: as above.
    let returned = unsafe { ibv_post_recv(&raw mut qp, &raw mut wr, &raw mut bad_wr) };
    assert_eq!((returned, qp.handle, bad_wr), (libc::EINVAL, 2, &raw mut wr));

    let (mut srq, mut bad_wr) = (ibv_srq { context, ..ibv_srq::default() }, ptr::null_mut());
    // SAFETY: as above.
    let returned = unsafe { ibv_post_srq_recv(&raw mut srq, &raw mut wr, &raw mut bad_wr) };
    assert_eq!((returned, srq.handle, bad_wr), (libc::ENOMEM, 3, &raw mut wr));
}

unsafe extern "C" fn classic_reg(
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    access: c_int,
) -> *mut ibv_mr {
    ptr::without_provenance_mut(usize::try_from(access).unwrap())
}

unsafe extern "C" fn newer_reg(
    _pd: *mut ibv_pd,
    addr: *mut c_void,
    _length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    assert_eq!(addr.addr() as u64, iova);
    ptr::without_provenance_mut(0x1000_0000_0000 + access as usize)
}

#[test]
fn optional_access_flags_go_to_the_function_that_knows_them() {
    const RELAXED: u32 = 1 << 20;
    let mut verbs = Verbs::unsupported();
    verbs.reg_mr = classic_reg;
    let reg = |verbs: &Verbs, access| {
        let addr = ptr::without_provenance_mut(0x5000);
        // SAFETY: the functions above touch neither PD nor memory (SAFETY.md F1).
        unsafe { ibv_reg_mr(verbs, ptr::null_mut(), addr, 16, access) }.addr()
    };
    assert_eq!(reg(&verbs, 7), 7);
    assert_eq!(reg(&verbs, 7 | RELAXED), 7, "an old library: optional flags are dropped");
    verbs.reg_mr_iova2 = Some(newer_reg);
    assert_eq!(reg(&verbs, 7), 7);
    assert_eq!(reg(&verbs, 7 | RELAXED), 0x1000_0010_0007);
}

unsafe extern "C" fn gid(
    _context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    _flags: u32,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ibv_gid_entry>());
    // SAFETY: the entry is the caller's (SAFETY.md F1).
    unsafe { entry.write(ibv_gid_entry { port_num, gid_index, ..ibv_gid_entry::default() }) };
    0
}

#[test]
fn gids_with_types_are_unsupported_by_name_before_rdma_core_32() {
    let mut verbs = Verbs::unsupported();
    let mut entry = ibv_gid_entry::default();
    let place = &raw mut entry;
    // SAFETY: no context is touched, the entry is alive, here and below (SAFETY.md F1).
    let missing = unsafe { ibv_query_gid_ex(&verbs, ptr::null_mut(), 1, 3, place, 0) }.unwrap_err();
    assert_eq!((missing.verb, missing.since), ("_ibv_query_gid_ex", "IBVERBS_1.11, rdma-core 32"));
    // SAFETY: as above.
    let missing = unsafe { ibv_query_gid_table(&verbs, ptr::null_mut(), place, 1, 0) }.unwrap_err();
    assert_eq!(missing.verb, "_ibv_query_gid_table");
    verbs.query_gid_ex = Some(gid);
    // SAFETY: as above.
    let returned = unsafe { ibv_query_gid_ex(&verbs, ptr::null_mut(), 1, 3, place, 0) }.unwrap();
    assert_eq!((returned, entry.port_num, entry.gid_index), (0, 1, 3));
}
