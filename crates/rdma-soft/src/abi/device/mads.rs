//! Queue pair 1. libibverbs has no such functions; see [`Verbs::mads`](rdma_sys::Verbs#structfield.mads).

use std::ffi::c_int;
use std::os::fd::IntoRawFd;

use rdma_sys::{AddressedMad, Errno, MadClock, Mads, ibv_context};
use rdma_types::Gid;

use crate::abi::block::device_of;
use crate::abi::errno::number;
use crate::device::gsi;
use crate::fabric::clock::Time;

pub(crate) const MADS: Mads = Mads {
    open: open_mads,
    source: mad_source,
    send: send_mad,
    clock: Some(MadClock { time: mad_time, set_alarm: set_mad_alarm, pass_time: pass_mad_time }),
};

unsafe extern "C" fn open_mads(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    gsi::open_mads(device).map_or_else(
        |refusal| {
            Errno::from(refusal).set();
            -1
        },
        IntoRawFd::into_raw_fd,
    )
}

unsafe extern "C" fn mad_source(
    context: *mut ibv_context,
    destination: *const [u8; 16],
    source: *mut [u8; 16],
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    // SAFETY: the caller passes a valid pointer to a GID (SAFETY.md F1).
    let destination = Gid::from_bytes(unsafe { destination.read() });
    number(gsi::mad_source(device, destination).map(|gid| {
        // SAFETY: the caller passes a valid pointer for the GID (SAFETY.md F1).
        unsafe { source.write(gid.to_bytes()) };
    }))
}

unsafe extern "C" fn send_mad(context: *mut ibv_context, mad: *const AddressedMad) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    // SAFETY: the caller passes a valid pointer to a datagram (SAFETY.md F1).
    let AddressedMad { source, destination, mad } = unsafe { mad.read() };
    let [source, destination] = [source, destination].map(Gid::from_bytes);
    number(gsi::send_mad(device, source, destination, &mad))
}

unsafe extern "C" fn mad_time(context: *mut ibv_context) -> u64 {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    if device.fabric.simulation.is_some() { device.fabric.clock.now().nanoseconds() } else { 0 }
}

unsafe extern "C" fn set_mad_alarm(context: *mut ibv_context, at: u64) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    number(gsi::set_alarm(device, Time::from_nanoseconds(at)))
}

unsafe extern "C" fn pass_mad_time(context: *mut ibv_context, until: u64) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    c_int::from(device.fabric.step_until(Time::from_nanoseconds(until)))
}
