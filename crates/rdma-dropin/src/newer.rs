//! Functions that are newer than the headers of `rdma-sys`. No device supports them: DMA handles, completion counters,
//! files of device memory, and the speed of a port.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use rdma_sys::{ibv_context, ibv_dm, ibv_qp};

use crate::refusal::{UNSUPPORTED, unsupported_minus_one, unsupported_null};

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_dmah(_context: *mut ibv_context, _attributes: *mut c_void) -> *mut c_void {
    unsupported_null()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_dmah(_handle: *mut c_void) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    unsupported_minus_one()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_port_speed(
    _context: *mut ibv_context,
    _port: u32,
    _speed: *mut u64,
) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_comp_cntr_caps(
    _context: *mut ibv_context,
    _capabilities: *mut c_void,
    _size: usize,
) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_cntr(
    _context: *mut ibv_context,
    _attributes: *mut c_void,
) -> *mut c_void {
    unsupported_null()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_cntr(_counter: *mut c_void) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_err_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_err_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_read_comp_cntr(_counter: *mut c_void, _value: *mut u64) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_read_err_comp_cntr(_counter: *mut c_void, _value: *mut u64) -> c_int {
    UNSUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_attach_comp_cntr(
    _qp: *mut ibv_qp,
    _counter: *mut c_void,
    _attributes: *mut c_void,
) -> c_int {
    UNSUPPORTED
}
