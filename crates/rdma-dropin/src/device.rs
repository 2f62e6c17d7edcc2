//! Devices, contexts, ports, and asynchronous events.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use rdma_sys::{
    _compat_ibv_port_attr, AddressedMad, functions, ibv_async_event, ibv_context, ibv_device,
    ibv_device_attr, ibv_gid, ibv_gid_entry,
};

use crate::forward::forward;
use crate::provider::{load_system, soft, verbs_of};
use crate::refusal::{UNSUPPORTED, unsupported_minus_one, unsupported_null};
use crate::stats;

const _: functions::ibv_import_device = ibv_import_device;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    match load_system().unwrap_or_else(soft).import_device {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(verb) => unsafe { verb(cmd_fd) },
        None => unsupported_null(),
    }
}

forward! {
    ibv_get_device_name(device: *mut ibv_device) -> *const c_char => get_device_name;
    ibv_get_device_guid(device: *mut ibv_device) -> u64 => get_device_guid;
    ibv_get_device_index(device: *mut ibv_device) -> c_int => get_device_index, or -1;
    ibv_open_device(device: *mut ibv_device) -> *mut ibv_context => open_device;
    ibv_get_async_event(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> c_int => get_async_event;
    ibv_ack_async_event(event: *mut ibv_async_event) => ack_async_event;
    ibv_query_device(
        context: *mut ibv_context,
        device_attr: *mut ibv_device_attr,
    ) -> c_int => query_device;
    ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut _compat_ibv_port_attr,
    ) -> c_int => query_port;
    ibv_query_gid(
        context: *mut ibv_context,
        port_num: u8,
        index: c_int,
        gid: *mut ibv_gid,
    ) -> c_int => query_gid;
    _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int => query_gid_ex, or UNSUPPORTED;
    _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize => query_gid_table, or -(UNSUPPORTED as isize);
    ibv_query_pkey(
        context: *mut ibv_context,
        port_num: u8,
        index: c_int,
        pkey: *mut u16,
    ) -> c_int => query_pkey;
    ibv_get_pkey_index(
        context: *mut ibv_context,
        port_num: u8,
        pkey: u16,
    ) -> c_int => get_pkey_index, or unsupported_minus_one();
}

/// The functions of `rdma_sys::Mads`, which libibverbs lacks: `librdmacm.so.1` of `rdma-dropin-cm` uses them.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_soft_open_mads(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    match unsafe { verbs_of(context) }.mads {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(mads) => unsafe { (mads.open)(context) },
        None => unsupported_minus_one(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_soft_mad_source(
    context: *mut ibv_context,
    destination: *const [u8; 16],
    source: *mut [u8; 16],
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    match unsafe { verbs_of(context) }.mads {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(mads) => unsafe { (mads.source)(context, destination, source) },
        None => UNSUPPORTED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_soft_send_mad(
    context: *mut ibv_context,
    mad: *const AddressedMad,
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    match unsafe { verbs_of(context) }.mads {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Some(mads) => unsafe { (mads.send)(context, mad) },
        None => UNSUPPORTED,
    }
}

const _: functions::ibv_close_device = ibv_close_device;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let verbs = unsafe { verbs_of(context) };
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    let returned = unsafe { (verbs.close_device)(context) };
    stats::update();
    returned
}
