//! The structs and numbers of `<rdma/rdma_cma.h>`, and the conversion of socket addresses.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use rdma_sys::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_type, ibv_srq,
};

/// `struct rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `struct ibv_sa_path_rec` of `<infiniband/sa.h>`. Numbers of more than one byte are big-endian, except for the `int`s.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid: [u8; 16],
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// `struct rdma_ib_addr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct IbAddress {
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
    pub(crate) pkey: u16,
}

/// `struct rdma_route`, with the `struct rdma_addr` at its beginning.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) src: libc::sockaddr_storage,
    pub(crate) dst: libc::sockaddr_storage,
    pub(crate) ib: IbAddress,
    pub(crate) path_rec: *mut Path,
    pub(crate) num_paths: c_int,
}

/// `enum rdma_port_space`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space(pub(crate) u32);

impl Space {
    pub(crate) const IPOIB: Self = Self(0x0002);
    pub(crate) const TCP: Self = Self(0x0106);
    pub(crate) const UDP: Self = Self(0x0111);
    pub(crate) const IB: Self = Self(0x013f);
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub(crate) struct CmId {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) route: Route,
    pub(crate) ps: Space,
    pub(crate) port_num: u8,
    pub(crate) event: *mut CmEvent,
    pub(crate) send_cq_channel: *mut ibv_comp_channel,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq_channel: *mut ibv_comp_channel,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) qp_type: ibv_qp_type,
}

/// The value of the two following fields that means the device's maximum.
pub(crate) const DEVICE_MAXIMUM: u8 = 0xff;

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `struct rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// The `param` of `struct rdma_cm_event`.
#[repr(C)]
pub(crate) union Param {
    pub(crate) conn: ConnParam,
    pub(crate) ud: UdParam,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) id: *mut CmId,
    pub(crate) listen_id: *mut CmId,
    pub(crate) event: EventType,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

/// `struct rdma_addrinfo`.
#[repr(C)]
pub(crate) struct AddrInfo {
    pub(crate) flags: c_int,
    pub(crate) family: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) port_space: c_int,
    pub(crate) src_len: libc::socklen_t,
    pub(crate) dst_len: libc::socklen_t,
    pub(crate) src_addr: *mut libc::sockaddr,
    pub(crate) dst_addr: *mut libc::sockaddr,
    pub(crate) src_canonname: *mut c_char,
    pub(crate) dst_canonname: *mut c_char,
    pub(crate) route_len: usize,
    pub(crate) route: *mut c_void,
    pub(crate) connect_len: usize,
    pub(crate) connect: *mut c_void,
    pub(crate) next: *mut AddrInfo,
}

/// Defines `enum rdma_cm_event_type`, whose numbers begin at 0.
macro_rules! event_types {
    ($($name:ident = $number:literal)+) => {
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct EventType(pub(crate) u32);

        impl EventType {
            $(pub(crate) const $name: Self = Self($number);)+

            /// Returns the name in C.
            pub(crate) const fn name(self) -> &'static std::ffi::CStr {
                const fn text(bytes: &'static [u8]) -> &'static std::ffi::CStr {
                    match std::ffi::CStr::from_bytes_with_nul(bytes) {
                        Ok(text) => text,
                        Err(_) => c"UNKNOWN EVENT",
                    }
                }
                match self {
                    $(Self::$name => text(concat!("RDMA", "_CM_EVENT_", stringify!($name), "\0").as_bytes()),)+
                    _ => c"UNKNOWN EVENT",
                }
            }
        }
    };
}

event_types! {
    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15
}

// The numbers that a C compiler prints for the headers of rdma-core 44, on 64-bit machines.
const _: () = {
    assert!(size_of::<CmId>() == 416);
    assert!(offset_of!(CmId, route) == 32);
    assert!(offset_of!(CmId, ps) == 344);
    assert!(offset_of!(CmId, port_num) == 348);
    assert!(offset_of!(CmId, event) == 352);
    assert!(offset_of!(CmId, recv_cq) == 384);
    assert!(offset_of!(CmId, qp_type) == 408);
    assert!(size_of::<IbAddress>() == 40);
    assert!(size_of::<Route>() == 312);
    assert!(offset_of!(Route, ib) == 256);
    assert!(offset_of!(Route, path_rec) == 296);
    assert!(size_of::<ConnParam>() == 24);
    assert!(offset_of!(ConnParam, qp_num) == 16);
    assert!(size_of::<UdParam>() == 56);
    assert!(offset_of!(UdParam, ah_attr) == 16);
    assert!(offset_of!(UdParam, qkey) == 52);
    assert!(size_of::<CmEvent>() == 80);
    assert!(offset_of!(CmEvent, status) == 20);
    assert!(offset_of!(CmEvent, param) == 24);
    assert!(size_of::<AddrInfo>() == 96);
    assert!(offset_of!(AddrInfo, connect) == 80);
    assert!(size_of::<Path>() == 64);
    assert!(offset_of!(Path, dlid) == 32);
    assert!(offset_of!(Path, pkey) == 54);
    assert!(offset_of!(Path, mtu) == 58);
    assert!(offset_of!(Path, preference) == 63);
};

/// Returns a socket address, or `None` if its family is neither IPv4 nor IPv6, or the pointer is NULL.
///
/// # Safety
/// The pointer is NULL, or points to an address of the length of its family.
pub(crate) unsafe fn read_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every address begins with its family (SAFETY.md F1).
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this struct (SAFETY.md F1).
            let it = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(it.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has this struct (SAFETY.md F1).
            let it = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(it.sin6_addr.s6_addr), u16::from_be(it.sin6_port));
            Some(SocketAddrV6::new(ip, port, it.sin6_flowinfo, it.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The families of socket addresses, in their fields' type.
const FAMILY_V4: libc::sa_family_t = 2;
const FAMILY_V6: libc::sa_family_t = 10;
const _: () = assert!(FAMILY_V4 as c_int == libc::AF_INET && FAMILY_V6 as c_int == libc::AF_INET6);

/// Returns the bytes of a socket address.
pub(crate) fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: the struct consists of integers, so all-zero bytes are valid (SAFETY.md F4).
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address.ip() {
        IpAddr::V4(ip) => {
            let it = libc::sockaddr_in {
                sin_family: FAMILY_V4,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for every address (sockaddr(3type)).
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(it) };
        }
        IpAddr::V6(ip) => {
            let scope = match address {
                SocketAddr::V6(address) => address.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            let it = libc::sockaddr_in6 {
                sin6_family: FAMILY_V6,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: scope,
            };
            // SAFETY: the storage has room and alignment for every address (sockaddr(3type)).
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(it) };
        }
    }
    storage
}
