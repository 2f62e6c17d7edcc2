//! The C struct of a send request, with fields that may be unset.

use std::ffi::{c_int, c_uint};
use std::mem::{MaybeUninit, align_of, offset_of, size_of};

use rdma_sys::{
    ibv_send_wr, ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_3,
    ibv_send_wr__bindgen_ty_4, ibv_sge, ibv_wr_opcode,
};

/// An `ibv_send_wr`, in which only the fields are set that a request uses.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) send_flags: c_uint,
    pub(crate) __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub(crate) wr: ibv_send_wr__bindgen_ty_2,
    /// Never set, because rdma-qp has no XRC queue pairs.
    pub(crate) qp_type: MaybeUninit<ibv_send_wr__bindgen_ty_3>,
    /// Set only for a bind.
    pub(crate) bind: MaybeUninit<ibv_send_wr__bindgen_ty_4>,
}

const _: () = {
    assert!(size_of::<SendWr>() == size_of::<ibv_send_wr>());
    assert!(align_of::<SendWr>() == align_of::<ibv_send_wr>());
    assert!(offset_of!(SendWr, wr_id) == offset_of!(ibv_send_wr, wr_id));
    assert!(offset_of!(SendWr, next) == offset_of!(ibv_send_wr, next));
    assert!(offset_of!(SendWr, sg_list) == offset_of!(ibv_send_wr, sg_list));
    assert!(offset_of!(SendWr, num_sge) == offset_of!(ibv_send_wr, num_sge));
    assert!(offset_of!(SendWr, opcode) == offset_of!(ibv_send_wr, opcode));
    assert!(offset_of!(SendWr, send_flags) == offset_of!(ibv_send_wr, send_flags));
    assert!(offset_of!(SendWr, __bindgen_anon_1) == offset_of!(ibv_send_wr, __bindgen_anon_1));
    assert!(offset_of!(SendWr, wr) == offset_of!(ibv_send_wr, wr));
    assert!(offset_of!(SendWr, qp_type) == offset_of!(ibv_send_wr, qp_type));
    assert!(offset_of!(SendWr, bind) == offset_of!(ibv_send_wr, __bindgen_anon_2));
};
