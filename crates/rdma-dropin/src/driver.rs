//! The symbols that libraries of providers import, such as `libmlx5.so.1` and `libefa.so.1`. perftest and pyverbs link
//! with these libraries, and bind all their symbols at start.
//!
//! No device belongs to a provider's library. The library compares the bytes after `ibv_device`, which are zero, before
//! it uses a device. So none of the functions below has to work.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

use rdma_sys::{Errno, ibv_context, ibv_device};

use crate::provider::verbs;
use crate::refusal::{UNSUPPORTED, unsupported_null};

/// A variable that libraries of providers may read.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

/// Registers nothing, because the kernel's devices are not listed. The number is the version of the private symbols.
#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34(_operations: *const c_void) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn verbs_open_device(
    device: *mut ibv_device,
    private: *mut c_void,
) -> *mut ibv_context {
    if !private.is_null() {
        return unsupported_null();
    }
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().open_device)(device) }
}

#[unsafe(no_mangle)]
extern "C" fn _verbs_init_and_alloc_context(
    _device: *mut ibv_device,
    _cmd_fd: c_int,
    _size: usize,
    _offset: *mut c_void,
    _driver: u32,
) -> *mut c_void {
    unsupported_null()
}

#[unsafe(no_mangle)]
extern "C" fn verbs_uninit_context(_context: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn verbs_set_ops(_context: *mut c_void, _operations: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn verbs_init_cq(
    _cq: *mut c_void,
    _context: *mut ibv_context,
    _channel: *mut c_void,
    _cq_context: *mut c_void,
) {
}

/// Prints nothing. In C, this function has further arguments, which the calling conventions of both processors allow to
/// be ignored.
#[unsafe(no_mangle)]
extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_void) {}

/// Returns the size of a command's list of attributes, without linked lists, which only providers' libraries make.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs(count: c_uint, _link: *const c_void) -> c_uint {
    count
}

#[unsafe(no_mangle)]
extern "C" fn execute_ioctl(_context: *mut ibv_context, _command: *mut c_void) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_cmd_poll_cq() -> c_int {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_cmd_export_dmabuf_fd() -> c_int {
    Errno::EOPNOTSUPP.set();
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_alloc() -> *mut c_void {
    unsupported_null()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_cc_shared_init() -> *mut c_void {
    unsupported_null()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_destroy() {}

#[unsafe(no_mangle)]
extern "C" fn ibv_dmabuf_heap_free() {}

/// Defines functions that return an error number, whatever their arguments are. They would send commands to the kernel.
macro_rules! commands {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> c_int {
                UNSUPPORTED
            }
        )+
    };
}

commands! {
    ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_comp_cntr
    ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context
    ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp
    ibv_cmd_open_xrcd ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context
    ibv_cmd_query_device ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
    ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_comp_cntr
    ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
    ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
}
