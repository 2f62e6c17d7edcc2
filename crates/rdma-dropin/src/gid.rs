//! The type of a GID, and the Ethernet address of a peer.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use rdma_sys::{Errno, functions, ibv_ah_attr, ibv_context, ibv_gid, ibv_gid_entry, ibv_gid_type};

use crate::provider::verbs_of;
use crate::refusal::unsupported_minus_one;
use crate::system;

/// `IBV_GID_TYPE_SYSFS_IB_ROCE_V1` and `IBV_GID_TYPE_SYSFS_ROCE_V2`, the values of `enum ibv_gid_type_sysfs`.
const INFINIBAND_OR_V1: c_uint = 0;
const V2: c_uint = 1;
/// The value for packets without a VLAN tag.
const NO_VLAN: u16 = 0xffff;

type QueryGidType = unsafe extern "C" fn(*mut ibv_context, u8, c_uint, *mut c_uint) -> c_int;

const _: QueryGidType = ibv_query_gid_type;
/// Returns -1 and sets `errno` if the place does not exist. An empty place has the type of InfiniBand.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    // SAFETY: the caller passes a live context (SAFETY.md F1), and this is the type of the function.
    let theirs = unsafe { system::function::<_, QueryGidType>(context, "ibv_query_gid_type") };
    if let Some(theirs) = theirs {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        return unsafe { theirs(context, port_num, index, kind) };
    }
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let Some(query_gid_ex) = (unsafe { verbs_of(context) }).query_gid_ex else {
        return unsupported_minus_one();
    };
    let mut entry = ibv_gid_entry::default();
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: the caller passes a live context (SAFETY.md F1), and the entry has this size.
    let returned =
        unsafe { query_gid_ex(context, port_num.into(), index, &raw mut entry, 0, size) };
    let found = match Errno::check(returned) {
        Ok(()) if entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0 => V2,
        Ok(()) | Err(Errno::ENODATA) => INFINIBAND_OR_V1,
        Err(errno) => {
            errno.set();
            return -1;
        }
    };
    // SAFETY: the caller passes a valid pointer for the type (SAFETY.md F1).
    unsafe { kind.write(found) };
    0
}

const _: functions::ibv_resolve_eth_l2_from_gid = ibv_resolve_eth_l2_from_gid;
/// Derives the Ethernet address from the GID, because software devices use no table of neighbours. Returns a negated
/// error number if the GID does not contain the address.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    type Resolve = functions::ibv_resolve_eth_l2_from_gid;
    // SAFETY: the caller passes a live context (SAFETY.md F1), and this is the type of the function.
    let theirs = unsafe { system::function::<_, Resolve>(context, "ibv_resolve_eth_l2_from_gid") };
    if let Some(theirs) = theirs {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        return unsafe { theirs(context, attr, eth_mac, vid) };
    }
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let attr = unsafe { attr.read() };
    let mut own = ibv_gid { raw: [0; 16] };
    let index = c_int::from(attr.grh.sgid_index);
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let verbs = unsafe { verbs_of(context) };
    // SAFETY: the caller passes a live context (SAFETY.md F1), and the GID is writable.
    let returned = unsafe { (verbs.query_gid)(context, attr.port_num, index, &raw mut own) };
    if returned != 0 {
        return returned;
    }
    // SAFETY: all fields of the union have 16 bytes (SAFETY.md F5), which the caller has initialised (F1).
    let Some(found) = ethernet_address(unsafe { attr.grh.dgid.raw }) else {
        return -Errno::EHOSTUNREACH.raw();
    };
    // SAFETY: the caller passes six writable bytes (SAFETY.md F1).
    unsafe { eth_mac.cast::<[u8; 6]>().write(found) };
    if !vid.is_null() {
        // SAFETY: the caller passes a valid pointer for the VLAN, or NULL (SAFETY.md F1).
        unsafe { vid.write(NO_VLAN) };
    }
    0
}

/// Returns the Ethernet address in a GID. Multicast GIDs contain the address of their group (RFC 1112 section 6.4, RFC
/// 2464 section 7). Link-local GIDs contain the address of the interface (RFC 4291 appendix A).
fn ethernet_address(gid: [u8; 16]) -> Option<[u8; 6]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224..=239, a, b, c] => {
            Some([0x01, 0x00, 0x5e, a & 0x7f, b, c])
        }
        [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
            Some([a ^ 0x02, b, c, d, e, f])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn of(address: &str) -> Option<[u8; 6]> {
        let v4 = address.parse().map(|v4: Ipv4Addr| v4.to_ipv6_mapped());
        let gid = v4.or_else(|_| address.parse::<Ipv6Addr>()).unwrap();
        ethernet_address(gid.octets())
    }

    #[test]
    fn some_gids_contain_an_ethernet_address() {
        assert_eq!(of("fe80::211:22ff:fe33:4455"), Some([0, 0x11, 0x22, 0x33, 0x44, 0x55]));
        assert_eq!(of("ff02::1:ff33:4455"), Some([0x33, 0x33, 0xff, 0x33, 0x44, 0x55]));
        assert_eq!(of("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(of("10.1.2.3"), None);
        assert_eq!(of("fd00::1"), None);
    }
}
