//! Ports, GIDs and partition keys.

use std::ffi::c_int;

use rdma_sys::{
    _compat_ibv_port_attr, Errno, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_context,
    ibv_gid, ibv_gid_entry, ibv_mtu, ibv_port_attr, ibv_port_state,
};

use crate::abi::block::device_of;
use crate::abi::convert::{fill, int};
use crate::address::GidEntry;
use crate::device::Device;
use crate::engine::requester::side::MAX_MESSAGE_BYTES;
use crate::link::Link;

/// The default partition, with full membership (IBTA volume 1, 10.9.1.2).
const PKEY: u16 = 0xffff;
/// `IBV_QPF_GRH_REQUIRED`: RoCE packets are addressed by GID.
const GRH_REQUIRED: u8 = 1;
/// The length of the longest message, in the type of the port attribute.
const MAX_MESSAGE: u32 = (MAX_MESSAGE_BYTES & 0xffff_ffff) as u32;
/// The number of bytes that `ibv_query_port` filled when its symbol version was frozen.
const COMPAT_BYTES: usize = 48;

fn port_attr(device: &Device) -> ibv_port_attr {
    let mut attr = ibv_port_attr::default();
    // PortPhysicalState 5: link up, 2: polling (IBTA volume 1, 14.2.5.6).
    (attr.state, attr.phys_state) = match device.port_is_up() {
        true => (ibv_port_state::IBV_PORT_ACTIVE, 5),
        false => (ibv_port_state::IBV_PORT_DOWN, 2),
    };
    attr.max_mtu = ibv_mtu::IBV_MTU_4096;
    attr.active_mtu = ibv_mtu(device.mtu.code().into());
    attr.gid_tbl_len = int(device.identity.gids.len() as u64);
    attr.max_msg_sz = MAX_MESSAGE;
    attr.pkey_tbl_len = 1;
    attr.bad_pkey_cntr = device.wrong_pkeys();
    attr.qkey_viol_cntr = device.wrong_qkeys();
    attr.lid = device.identity.lid;
    attr.max_vl_num = 1;
    // 4x at 25 Gb/s.
    attr.active_width = 2;
    attr.active_speed = 32;
    let layer = match device.link {
        Link::InfiniBand => IBV_LINK_LAYER_INFINIBAND,
        Link::Ethernet => IBV_LINK_LAYER_ETHERNET,
    };
    attr.link_layer = u8::try_from(layer).unwrap_or_default();
    match device.link {
        // On hardware, a subnet manager assigns the LID, so a port with a LID knows one. Here there is none, and the
        // port names itself.
        Link::InfiniBand => attr.sm_lid = attr.lid,
        Link::Ethernet => attr.flags = GRH_REQUIRED,
    }
    attr
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    if port != 1 {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let attr = port_attr(unsafe { device_of(context) });
    // SAFETY: the caller's struct has `length` bytes (SAFETY.md F1).
    unsafe { fill(&attr, out, length) };
    0
}

pub(crate) unsafe extern "C" fn query_port_compat(
    context: *mut ibv_context,
    port: u8,
    out: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller passes valid arguments (SAFETY.md F1), and the old struct has this many bytes.
    unsafe { query_port(context, port, out.cast(), COMPAT_BYTES) }
}

/// Returns the GID table entry that the arguments of a call refer to.
fn entry(device: &Device, port: u32, index: u32) -> Result<GidEntry, Errno> {
    let entry = device.identity.entry(index as usize).copied();
    entry.filter(|_| port == 1).ok_or(Errno::EINVAL)
}

fn to_verbs(device: &Device, index: u32, entry: GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.to_bytes() },
        gid_index: index,
        port_num: 1,
        gid_type: entry.kind.raw(),
        ndev_ifindex: device.identity.interface(index as usize),
    }
}

pub(crate) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    match entry(device, port.into(), index.cast_unsigned()) {
        Ok(entry) => {
            // SAFETY: the caller passes a valid pointer for the GID (SAFETY.md F1).
            unsafe { out.write(ibv_gid { raw: entry.gid.to_bytes() }) };
            0
        }
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    match entry(device, port, index) {
        Ok(entry) if entry.gid.is_zero() => Errno::ENODATA.raw(),
        Ok(entry) => {
            // SAFETY: the caller's entry is at least as large as the bindings' entry (SAFETY.md F1).
            unsafe { out.write(to_verbs(device, index, entry)) };
            0
        }
        Err(errno) => errno.raw(),
    }
}

pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let refused = |errno: Errno| -(errno.raw() as isize);
    if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
        return refused(Errno::EINVAL);
    }
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let device = unsafe { device_of(context) };
    // Empty entries are omitted.
    let found = || (0..).zip(device.identity.table()).filter(|(_, entry)| !entry.gid.is_zero());
    let count = found().count();
    if count > max_entries {
        return refused(Errno::EINVAL);
    }
    for (n, (index, &entry)) in found().enumerate() {
        let place = entries.wrapping_byte_add(n * entry_size);
        // SAFETY: the caller's array has `max_entries` entries of this size, and at most that many are written
        // (SAFETY.md F12).
        unsafe { place.write(to_verbs(device, index, entry)) };
    }
    isize::try_from(count).unwrap_or(isize::MAX)
}

pub(crate) unsafe extern "C" fn query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    if port != 1 || index != 0 {
        Errno::EINVAL.set();
        return -1;
    }
    // SAFETY: the caller passes a valid pointer for the key (SAFETY.md F1).
    unsafe { out.write(PKEY.to_be()) };
    0
}

pub(crate) unsafe extern "C" fn get_pkey_index(
    _context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    if port == 1 && pkey == PKEY.to_be() {
        return 0;
    }
    Errno::EINVAL.set();
    -1
}
