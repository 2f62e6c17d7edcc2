//! Address handles.

use std::ffi::c_int;
use std::net::Ipv4Addr;

use rdma_sys::{
    Errno, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
    ibv_wc_flags,
};
use rdma_types::{Gid, GidType};

use super::attributes::address;
use crate::abi::block::{AhBlock, device_of, pd_children, pd_device, pd_of, vector_of};
use crate::abi::errno::{number, pointer};
use crate::address::{AddressAttributes, AddressVector, Route};
use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::wire::route_header::{self, IPV4_AT};
use crate::faults::Verb;
use crate::link::Link;

/// The largest service level (IBTA volume 1, 7.6.5).
const MAX_SERVICE_LEVEL: u8 = 15;
/// The bits of the service level that a RoCE port uses as the VLAN priority. A program that answers a datagram uses the
/// service level from the datagram's completion. On RoCE, that is the [packet type](route_header::packet_type), whose
/// fourth bit is removed here.
const VLAN_PRIORITY: u8 = 7;

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let attr = unsafe { attr.read() };
    // SAFETY: the caller passes a live protection domain (SAFETY.md F1).
    let domain = unsafe { pd_of(pd) };
    // SAFETY: as above.
    let device = *unsafe { pd_device(pd) };
    let counted = device.count_call(Verb::CreateAh);
    let checked = counted.and_then(|()| vector(device, domain.number, &address(&attr)));
    pointer(checked.and_then(|vector| {
        device.address_handles.take(device.limits.max_ah)?;
        // SAFETY: as above.
        unsafe { pd_children(pd) }.add();
        // SAFETY: as above; nothing writes the C part of a protection domain after it was made.
        let context = unsafe { (*pd).context };
        let handle = (device.fabric.ids.unique() & 0xffff_ffff) as u32;
        let verbs = ibv_ah { context, pd, handle };
        Ok(Box::into_raw(Box::new(AhBlock { verbs, vector })).cast())
    }))
}

fn vector(device: &Device, pd: u64, attr: &AddressAttributes) -> Result<AddressVector, Refusal> {
    let path = device.path_of_datagrams(attr)?;
    if attr.service_level > MAX_SERVICE_LEVEL {
        return Err(Refusal::Invalid);
    }
    let route = match attr.is_global {
        0 => None,
        _ => Some(Route {
            // The entry exists, because `path` was computed from it.
            source: *device
                .identity
                .entry(usize::from(attr.source_index))
                .ok_or(Refusal::Invalid)?,
            destination: attr.destination.into(),
            traffic_class: attr.traffic_class,
            flow_label: attr.flow_label,
            hop_limit: attr.hop_limit,
        }),
    };
    let service_level = match device.link {
        Link::InfiniBand => attr.service_level,
        Link::Ethernet => attr.service_level & VLAN_PRIORITY,
    };
    Ok(AddressVector { pd, path, service_level, route })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: `create_ah` made the handle, and the caller gives it up (SAFETY.md F11). Requests that were posted with
    // it contain copies of its vector.
    let block = unsafe { Box::from_raw(ah.cast::<AhBlock>()) };
    let pd = block.verbs.pd;
    // SAFETY: a protection domain outlives the objects created in it (SAFETY.md F11).
    unsafe { pd_device(pd) }.address_handles.give();
    // SAFETY: as above.
    unsafe { pd_children(pd) }.remove();
    number(Ok(()))
}

pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: the caller passes a live protection domain, and its context outlives it (SAFETY.md F1).
    let context = unsafe { (*pd).context };
    // SAFETY: the caller passes valid arguments (SAFETY.md F1).
    if unsafe { init_ah_from_wc(context, port, wc, grh, &raw mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { create_ah(pd, &raw mut attr) }
}

pub(crate) unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    out: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    // SAFETY: the caller passes a readable completion (SAFETY.md F1).
    let wc = unsafe { wc.read() };
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    if wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0 {
        // SAFETY: the caller passes a readable header, which need not be aligned (SAFETY.md F1). Any bytes are a valid
        // value.
        let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
        match reply_route(device, &header) {
            Ok(route) => (attr.is_global, attr.grh) = (1, route),
            Err(errno) => {
                errno.set();
                return -1;
            }
        }
    }
    // SAFETY: the caller passes a valid pointer for the attributes (SAFETY.md F1).
    unsafe { out.write(attr) };
    0
}

/// Returns the route to the sender of a packet. In this device's headers, zeroes precede an IPv4 header.
fn reply_route(device: &Device, header: &[u8; 40]) -> Result<ibv_global_route, Errno> {
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    if first >> 28 != 6 {
        return reply_route_ipv4(device, &header[IPV4_AT..]);
    }
    let kind = match (header[6], device.link) {
        (route_header::NEXT_UDP, _) => GidType::ROCE_V2,
        (route_header::NEXT_INFINIBAND, Link::Ethernet) => GidType::ROCE_V1,
        (route_header::NEXT_INFINIBAND, Link::InfiniBand) => GidType::IB,
        _ => return Err(Errno::EPROTONOSUPPORT),
    };
    let mut gids = [[0; 16]; 2];
    gids[0].copy_from_slice(&header[8..24]);
    gids[1].copy_from_slice(&header[24..]);
    Ok(ibv_global_route {
        dgid: ibv_gid { raw: gids[0] },
        flow_label: first & 0x000f_ffff,
        sgid_index: index_of(device, gids[1].into(), kind)?,
        hop_limit: header[7],
        traffic_class: (first >> 20 & 0xff) as u8,
    })
}

fn reply_route_ipv4(device: &Device, ip: &[u8]) -> Result<ibv_global_route, Errno> {
    if ip[0] != 0x45 || route_header::checksum(ip) != 0 {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let gid = |at: usize| Gid::from_ipv4(Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]));
    Ok(ibv_global_route {
        dgid: ibv_gid { raw: gid(12).to_bytes() },
        flow_label: 0,
        sgid_index: index_of(device, gid(16), GidType::ROCE_V2)?,
        hop_limit: ip[8],
        traffic_class: ip[1],
    })
}

fn index_of(device: &Device, gid: Gid, kind: GidType) -> Result<u8, Errno> {
    let place = device
        .identity
        .table()
        .position(|row| row.gid == gid && row.kind == kind && !gid.is_zero());
    place.and_then(|place| u8::try_from(place).ok()).ok_or(Errno::ENOENT)
}

/// Returns the destination of datagrams that use this address handle.
///
/// # Safety
///
/// The handle is NULL, or it is live while the result is used and belongs to this provider.
pub(crate) unsafe fn destination<'a>(ah: *mut ibv_ah) -> Option<&'a AddressVector> {
    if ah.is_null() {
        return None;
    }
    // SAFETY: by this function's contract (SAFETY.md F11).
    Some(unsafe { vector_of(ah) })
}
