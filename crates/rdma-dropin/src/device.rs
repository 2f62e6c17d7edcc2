//! Devices, contexts, ports, and asynchronous events.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::ptr;

use rdma_sys::{
    _compat_ibv_port_attr, Errno, functions, ibv_async_event, ibv_context, ibv_device,
    ibv_device_attr, ibv_gid, ibv_gid_entry,
};

use crate::provider::{install, verbs};
use crate::refusal::{unsupported_minus_one, unsupported_null};
use crate::stats;

const _: functions::ibv_get_device_list = ibv_get_device_list;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if let Err(errno) = install() {
        errno.set();
        return ptr::null_mut();
    }
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().get_device_list)(num_devices) }
}

const _: functions::ibv_free_device_list = ibv_free_device_list;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().free_device_list)(list) }
}

const _: functions::ibv_get_device_name = ibv_get_device_name;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().get_device_name)(device) }
}

const _: functions::ibv_get_device_guid = ibv_get_device_guid;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().get_device_guid)(device) }
}

const _: functions::ibv_get_device_index = ibv_get_device_index;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    match verbs().get_device_index {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(get_device_index) => unsafe { get_device_index(device) },
        None => -1,
    }
}

const _: functions::ibv_open_device = ibv_open_device;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().open_device)(device) }
}

const _: functions::ibv_import_device = ibv_import_device;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    match verbs().import_device {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(import_device) => unsafe { import_device(cmd_fd) },
        None => unsupported_null(),
    }
}

const _: functions::ibv_close_device = ibv_close_device;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    let returned = unsafe { (verbs().close_device)(context) };
    stats::update();
    returned
}

const _: functions::ibv_get_async_event = ibv_get_async_event;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().get_async_event)(context, event) }
}

const _: functions::ibv_ack_async_event = ibv_ack_async_event;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().ack_async_event)(event) }
}

const _: functions::ibv_query_device = ibv_query_device;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    device_attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().query_device)(context, device_attr) }
}

const _: functions::ibv_query_port = ibv_query_port;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().query_port)(context, port_num, port_attr) }
}

const _: functions::ibv_query_gid = ibv_query_gid;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().query_gid)(context, port_num, index, gid) }
}

const _: functions::_ibv_query_gid_ex = _ibv_query_gid_ex;
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    match verbs().query_gid_ex {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(query_gid_ex) => unsafe {
            query_gid_ex(context, port_num, gid_index, entry, flags, entry_size)
        },
        None => Errno::EOPNOTSUPP.raw(),
    }
}

const _: functions::_ibv_query_gid_table = _ibv_query_gid_table;
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    match verbs().query_gid_table {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(query_gid_table) => unsafe {
            query_gid_table(context, entries, max_entries, flags, entry_size)
        },
        None => -(Errno::EOPNOTSUPP.raw() as isize),
    }
}

const _: functions::ibv_query_pkey = ibv_query_pkey;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs().query_pkey)(context, port_num, index, pkey) }
}

const _: functions::ibv_get_pkey_index = ibv_get_pkey_index;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    match verbs().get_pkey_index {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(get_pkey_index) => unsafe { get_pkey_index(context, port_num, pkey) },
        None => unsupported_minus_one(),
    }
}
