//! The device list, which may contain the devices of two providers.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::{ptr, slice};

use rdma_sys::{Verbs, functions, ibv_device};

use crate::provider::providers;

/// The entries before the first device of a list of two providers: their own lists, and the number of all entries.
const HEADER: usize = 3;

const _: functions::ibv_get_device_list = ibv_get_device_list;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    match providers() {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Ok([one]) => unsafe { (one.get_device_list)(num_devices) },
        // SAFETY: the caller passes a valid pointer for the number, or NULL (SAFETY.md F1).
        Ok(all) => unsafe { list_all(all, num_devices) },
        Err(errno) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

/// Returns the devices of all providers. A provider that cannot list its devices, for example because the kernel has no
/// RDMA, does not hide those of the others.
///
/// # Safety
/// The number can be written, or is NULL.
unsafe fn list_all(providers: &[&Verbs], num_devices: *mut c_int) -> *mut *mut ibv_device {
    let mut entries = vec![ptr::null_mut(); HEADER];
    for (n, provider) in providers.iter().enumerate() {
        let mut count = 0;
        // SAFETY: the count is writable (SAFETY.md F1, F2).
        let list = unsafe { (provider.get_device_list)(&raw mut count) };
        if list.is_null() {
            continue;
        }
        entries[n] = list.cast();
        // SAFETY: the list has this number of devices, until `ibv_free_device_list` frees it (SAFETY.md F2).
        entries.extend(unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) });
    }
    if entries[0].is_null() && entries[1].is_null() {
        return ptr::null_mut();
    }
    if !num_devices.is_null() {
        let count = c_int::try_from(entries.len() - HEADER).unwrap_or(c_int::MAX);
        // SAFETY: this function's contract.
        unsafe { num_devices.write(count) };
    }
    entries.push(ptr::null_mut());
    entries[HEADER - 1] = ptr::without_provenance_mut(entries.len());
    let entries = Box::into_raw(entries.into_boxed_slice());
    entries.cast::<*mut ibv_device>().wrapping_add(HEADER)
}

const _: functions::ibv_free_device_list = ibv_free_device_list;
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    match providers() {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        Ok([one]) => unsafe { (one.free_device_list)(list) },
        Ok(all) if !list.is_null() => {
            let first = list.wrapping_sub(HEADER);
            // SAFETY: `list_all` returned the list, after a header with this number (SAFETY.md F1).
            let length = unsafe { first.wrapping_add(HEADER - 1).read() }.addr();
            // SAFETY: `list_all` made the list from a box of this length (SAFETY.md F1).
            let entries = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(first, length)) };
            for (provider, list) in all.iter().zip(&entries) {
                if !list.is_null() {
                    // SAFETY: the list is the provider's own, and freed once (SAFETY.md F1, F2).
                    unsafe { (provider.free_device_list)(list.cast()) };
                }
            }
        }
        _ => {}
    }
}
