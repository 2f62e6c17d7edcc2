//! The inline functions of extended QPs and CQs: each calls the pointer of its name, with its
//! arguments in order.

#![allow(unsafe_code)]

use std::{cell::RefCell, ffi::c_void, mem::offset_of, ptr};

use rdma_sys::{
    Errno, IBV_ADVISE_MR_FLAG_FLUSH, Verbs, ib_uverbs_advise_mr_advice, ibv_advise_mr, ibv_context,
    ibv_cq, ibv_cq_ex, ibv_cq_ex_to_cq, ibv_cq_init_attr_ex, ibv_create_cq_ex, ibv_create_qp_ex,
    ibv_end_poll, ibv_modify_cq, ibv_modify_cq_attr, ibv_next_poll, ibv_pd, ibv_poll_cq_attr,
    ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_query_rt_values_ex, ibv_sge,
    ibv_start_poll, ibv_values_ex, ibv_wc_opcode, ibv_wc_read_byte_len, ibv_wc_read_completion_ts,
    ibv_wc_read_completion_wallclock_ns, ibv_wc_read_cvlan, ibv_wc_read_dlid_path_bits,
    ibv_wc_read_flow_tag, ibv_wc_read_imm_data, ibv_wc_read_invalidated_rkey, ibv_wc_read_opcode,
    ibv_wc_read_qp_num, ibv_wc_read_sl, ibv_wc_read_slid, ibv_wc_read_src_qp, ibv_wc_read_tm_info,
    ibv_wc_read_vendor_err, ibv_wc_read_wc_flags, ibv_wc_tm_info, ibv_wr_abort,
    ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add, ibv_wr_atomic_write, ibv_wr_bind_mw,
    ibv_wr_complete, ibv_wr_flush, ibv_wr_local_inv, ibv_wr_rdma_read, ibv_wr_rdma_write,
    ibv_wr_rdma_write_imm, ibv_wr_send, ibv_wr_send_imm, ibv_wr_send_inv, ibv_wr_send_tso,
    ibv_wr_set_inline_data, ibv_wr_set_inline_data_list, ibv_wr_set_sge, ibv_wr_set_sge_list,
    ibv_wr_set_ud_addr, ibv_wr_set_xrc_srqn, ibv_wr_start, verbs_context,
};

thread_local! {
    /// The calls, with their arguments as numbers.
    static CALLED: RefCell<Vec<(&'static str, Vec<u64>)>> = const { RefCell::new(Vec::new()) };
}

fn called(name: &'static str, arguments: &[u64]) {
    CALLED.with_borrow_mut(|called| called.push((name, arguments.to_vec())));
}

/// Returns the calls since the last time.
fn taken() -> Vec<(&'static str, Vec<u64>)> {
    CALLED.take()
}

/// An argument as a number.
trait Number {
    fn number(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(impl Number for $type {
        fn number(self) -> u64 {
            self.into()
        }
    })*};
}
numbers!(u8 u16 u32 u64);

impl Number for usize {
    fn number(self) -> u64 {
        self as u64
    }
}

impl<T> Number for *mut T {
    fn number(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Number for *const T {
    fn number(self) -> u64 {
        self.addr() as u64
    }
}

/// Sets `$op` of `$object` to a function that records its call and returns `$returned`.
macro_rules! note {
    ($object:ident: $struct:ty; $($op:ident($($argument:ident: $type:ty),*)
        $(-> $returned:ty = $value:expr)?;)+) => {$({
        unsafe extern "C" fn $op(_: *mut $struct $(, $argument: $type)*) $(-> $returned)? {
            called(stringify!($op), &[$($argument.number()),*]);
            $($value)?
        }
        $object.$op = Some($op);
    })+};
}

/// An address to pass on; it is never dereferenced.
fn at<T>(address: usize) -> *mut T {
    ptr::without_provenance_mut(address)
}

fn queue_pair() -> Box<ibv_qp_ex> {
    let mut qp = Box::new(ibv_qp_ex::default());
    note! { qp: ibv_qp_ex;
        wr_start(); wr_complete() -> i32 = libc::ENOMEM; wr_abort();
        wr_atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64);
        wr_atomic_fetch_add(rkey: u32, address: u64, add: u64);
        wr_bind_mw(mw: *mut rdma_sys::ibv_mw, rkey: u32, info: *const rdma_sys::ibv_mw_bind_info);
        wr_local_inv(rkey: u32);
        wr_rdma_read(rkey: u32, address: u64);
        wr_rdma_write(rkey: u32, address: u64);
        wr_rdma_write_imm(rkey: u32, address: u64, imm: u32);
        wr_send(); wr_send_imm(imm: u32); wr_send_inv(rkey: u32);
        wr_send_tso(header: *mut c_void, size: u16, mss: u16);
        wr_set_ud_addr(ah: *mut rdma_sys::ibv_ah, qpn: u32, qkey: u32);
        wr_set_xrc_srqn(srqn: u32);
        wr_set_inline_data(address: *mut c_void, length: usize);
        wr_set_inline_data_list(count: usize, list: *const rdma_sys::ibv_data_buf);
        wr_set_sge(lkey: u32, address: u64, length: u32);
        wr_set_sge_list(count: usize, list: *const rdma_sys::ibv_sge);
        wr_atomic_write(rkey: u32, address: u64, value: *const c_void);
        wr_flush(rkey: u32, address: u64, length: usize, kind: u8, level: u8);
    }
    qp
}

#[test]
fn each_request_goes_to_the_function_of_its_name() {
    let mut queue_pair = queue_pair();
    let qp = &raw mut *queue_pair;
    macro_rules! post {
        ($($call:ident, $op:literal: $($given:expr),*;)+) => {$(
            // SAFETY: the QP is alive and has the functions above, which follow no pointer
            // (SAFETY.md F1).
            unsafe { $call(qp $(, $given)*) };
            assert_eq!(taken(), [($op, vec![$($given.number()),*])]);
        )+};
    }
    post! {
        ibv_wr_start, "wr_start":;
        ibv_wr_abort, "wr_abort":;
        ibv_wr_atomic_cmp_swp, "wr_atomic_cmp_swp": 1_u32, 2_u64, 3_u64, 4_u64;
        ibv_wr_atomic_fetch_add, "wr_atomic_fetch_add": 1_u32, 2_u64, 3_u64;
        ibv_wr_bind_mw, "wr_bind_mw": at::<rdma_sys::ibv_mw>(8), 2_u32, at::<rdma_sys::ibv_mw_bind_info>(16);
        ibv_wr_local_inv, "wr_local_inv": 5_u32;
        ibv_wr_rdma_read, "wr_rdma_read": 1_u32, 2_u64;
        ibv_wr_rdma_write, "wr_rdma_write": 1_u32, 2_u64;
        ibv_wr_rdma_write_imm, "wr_rdma_write_imm": 1_u32, 2_u64, 3_u32;
        ibv_wr_send, "wr_send":;
        ibv_wr_send_imm, "wr_send_imm": 7_u32;
        ibv_wr_send_inv, "wr_send_inv": 8_u32;
        ibv_wr_send_tso, "wr_send_tso": at::<c_void>(8), 1_u16, 2_u16;
        ibv_wr_set_ud_addr, "wr_set_ud_addr": at::<rdma_sys::ibv_ah>(8), 1_u32, 2_u32;
        ibv_wr_set_xrc_srqn, "wr_set_xrc_srqn": 9_u32;
        ibv_wr_set_inline_data, "wr_set_inline_data": at::<c_void>(8), 1_usize;
        ibv_wr_set_inline_data_list, "wr_set_inline_data_list": 1_usize, at::<rdma_sys::ibv_data_buf>(8);
        ibv_wr_set_sge, "wr_set_sge": 1_u32, 2_u64, 3_u32;
        ibv_wr_set_sge_list, "wr_set_sge_list": 1_usize, at::<rdma_sys::ibv_sge>(8);
        ibv_wr_atomic_write, "wr_atomic_write": 1_u32, 2_u64, at::<c_void>(8).cast_const();
        ibv_wr_flush, "wr_flush": 1_u32, 2_u64, 3_usize, 4_u8, 5_u8;
    }
    // SAFETY: as above.
    assert_eq!(Errno::check(unsafe { ibv_wr_complete(qp) }), Err(Errno::ENOMEM));
    assert_eq!(taken(), [("wr_complete", vec![])]);
}

#[test]
fn each_field_of_a_completion_is_read_by_the_function_of_its_name() {
    let mut queue = Box::new(ibv_cq_ex::default());
    note! { queue: ibv_cq_ex;
        start_poll(attr: *mut ibv_poll_cq_attr) -> i32 = libc::EIO;
        next_poll() -> i32 = libc::ENOENT;
        end_poll();
        read_opcode() -> ibv_wc_opcode = ibv_wc_opcode(1);
        read_vendor_err() -> u32 = 2; read_byte_len() -> u32 = 3; read_imm_data() -> u32 = 4;
        read_qp_num() -> u32 = 5; read_src_qp() -> u32 = 6; read_wc_flags() -> u32 = 7;
        read_slid() -> u32 = 8; read_sl() -> u8 = 9; read_dlid_path_bits() -> u8 = 10;
        read_completion_ts() -> u64 = 11; read_cvlan() -> u16 = 12; read_flow_tag() -> u32 = 13;
        read_tm_info(info: *mut ibv_wc_tm_info); read_completion_wallclock_ns() -> u64 = 14;
    }
    let cq = &raw mut *queue;
    macro_rules! read {
        ($($call:ident, $op:literal = $value:expr;)+) => {$(
            // SAFETY: the CQ is alive and has the functions above, which follow no pointer
            // (SAFETY.md F1).
            assert_eq!(unsafe { $call(cq) }, $value);
            assert_eq!(taken(), [($op, vec![])]);
        )+};
    }
    read! {
        ibv_next_poll, "next_poll" = libc::ENOENT;
        ibv_end_poll, "end_poll" = ();
        ibv_wc_read_opcode, "read_opcode" = ibv_wc_opcode(1);
        ibv_wc_read_vendor_err, "read_vendor_err" = 2;
        ibv_wc_read_byte_len, "read_byte_len" = 3;
        ibv_wc_read_imm_data, "read_imm_data" = 4;
        ibv_wc_read_invalidated_rkey, "read_imm_data" = 4;
        ibv_wc_read_qp_num, "read_qp_num" = 5;
        ibv_wc_read_src_qp, "read_src_qp" = 6;
        ibv_wc_read_wc_flags, "read_wc_flags" = 7;
        ibv_wc_read_slid, "read_slid" = 8;
        ibv_wc_read_sl, "read_sl" = 9;
        ibv_wc_read_dlid_path_bits, "read_dlid_path_bits" = 10;
        ibv_wc_read_completion_ts, "read_completion_ts" = 11;
        ibv_wc_read_cvlan, "read_cvlan" = 12;
        ibv_wc_read_flow_tag, "read_flow_tag" = 13;
        ibv_wc_read_completion_wallclock_ns, "read_completion_wallclock_ns" = 14;
    }
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_start_poll(cq, at(8)) }, libc::EIO);
    // SAFETY: as above.
    unsafe { ibv_wc_read_tm_info(cq, at(16)) };
    assert_eq!(taken(), [("start_poll", vec![8]), ("read_tm_info", vec![16])]);
    assert_eq!(ibv_cq_ex_to_cq(cq).addr(), cq.addr());
}

/// A context whose extended functions are those that `set` sets.
fn context(set: impl FnOnce(&mut verbs_context)) -> (Box<verbs_context>, *mut ibv_context) {
    let mut extended = Box::new(verbs_context::default());
    extended.sz = size_of::<verbs_context>();
    extended.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    set(&mut extended);
    let whole = &raw mut *extended;
    (extended, whole.wrapping_byte_add(offset_of!(verbs_context, context)).cast())
}

unsafe extern "C" fn create_cq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    called("create_cq_ex", &[attr.number()]);
    at(8)
}

unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    called("create_qp_ex", &[attr.number()]);
    at(16)
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    called("create_qp", &[pd.number(), attr.number()]);
    at(24)
}

unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> i32 {
    called("modify_cq", &[attr.number()]);
    libc::EBUSY
}

unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> i32 {
    called("advise_mr", &[advice.0.into(), flags.into(), list.number(), count.into()]);
    libc::EFAULT
}

unsafe extern "C" fn values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> i32 {
    called("query_rt_values", &[values.number()]);
    libc::EIO
}

#[test]
fn the_functions_of_an_extended_context_are_called() {
    let (_extended, context) = context(|it| {
        it.create_cq_ex = Some(create_cq_ex);
        it.create_qp_ex = Some(create_qp_ex);
        it.modify_cq = Some(modify_cq);
        it.advise_mr = Some(advise_mr);
        it.query_rt_values = Some(values);
    });
    let verbs = Verbs::unsupported();
    let mut cq = ibv_cq { context, ..ibv_cq::default() };
    let mut pd = ibv_pd { context, ..ibv_pd::default() };
    let write = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let mut attr = ibv_qp_init_attr_ex { comp_mask: 65, ..ibv_qp_init_attr_ex::default() };
    // SAFETY: all objects are alive and fit the functions above, here and below (SAFETY.md F1).
    assert_eq!(unsafe { ibv_create_cq_ex(context, at(32)) }, at(8));
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_create_qp_ex(&verbs, context, &raw mut attr) }, at(16));
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_modify_cq(&raw mut cq, at(48)) }, libc::EBUSY);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_query_rt_values_ex(context, at(56)) }, libc::EIO);
    // SAFETY: as above.
    let advised = unsafe { ibv_advise_mr(&raw mut pd, write, IBV_ADVISE_MR_FLAG_FLUSH, at(64), 2) };
    assert_eq!(advised, libc::EFAULT);
    assert_eq!(
        taken(),
        [
            ("create_cq_ex", vec![32]),
            ("create_qp_ex", vec![(&raw mut attr).number()]),
            ("modify_cq", vec![48]),
            ("query_rt_values", vec![56]),
            ("advise_mr", vec![1, 1, 64, 2]),
        ]
    );
}

#[test]
fn missing_functions_of_a_context_are_not_supported() {
    let (_extended, context) = context(|_| ());
    let verbs = Verbs::unsupported();
    let mut cq = ibv_cq { context, ..ibv_cq::default() };
    let mut pd = ibv_pd { context, ..ibv_pd::default() };
    let write = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let mut attr = ibv_qp_init_attr_ex { comp_mask: 64, ..ibv_qp_init_attr_ex::default() };
    // SAFETY: all objects are alive, here and below (SAFETY.md F1).
    let queue = unsafe { ibv_create_cq_ex(context, at(32)) };
    assert_eq!(Errno::check_null(queue), Err(Errno::EOPNOTSUPP));
    Errno::from_raw(0).set();
    // SAFETY: as above.
    let pair = unsafe { ibv_create_qp_ex(&verbs, context, &raw mut attr) };
    assert_eq!(Errno::check_null(pair), Err(Errno::EOPNOTSUPP));
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_modify_cq(&raw mut cq, at(48)) }, libc::EOPNOTSUPP);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_query_rt_values_ex(context, at(56)) }, libc::EOPNOTSUPP);
    // SAFETY: as above.
    let advised = unsafe { ibv_advise_mr(&raw mut pd, write, 0, at(64), 2) };
    assert_eq!(advised, libc::EOPNOTSUPP);
    assert_eq!(taken(), []);
}

#[test]
fn a_queue_pair_with_nothing_but_a_domain_is_created_by_the_classic_function() {
    let (_extended, context) = context(|it| it.create_qp_ex = Some(create_qp_ex));
    let mut verbs = Verbs::unsupported();
    verbs.create_qp = create_qp;
    let mut attr =
        ibv_qp_init_attr_ex { comp_mask: 1, pd: at(40), ..ibv_qp_init_attr_ex::default() };
    let place = &raw mut attr;
    // SAFETY: all objects are alive and fit the functions above (SAFETY.md F1).
    assert_eq!(unsafe { ibv_create_qp_ex(&verbs, context, place) }, at(24));
    assert_eq!(taken(), [("create_qp", vec![40, place.number()])]);
}
