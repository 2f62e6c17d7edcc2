//! The raw interface of librdmacm: its structs, and its functions as a table.
//!
//! Everything is spelled as in `<rdma/rdma_cma.h>`, except for the anonymous union of an event, and constants, which have no
//! prefix here. The manual pages of rdma-core (`man rdma_cm` …) are the documentation. The constraints of the crate's other
//! structs apply here, too.
#![allow(non_camel_case_types, missing_docs)] // the names and the fields are C's
#![allow(missing_debug_implementations)] // the structs contain unions

mod address;
mod library;

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

pub use self::address::{read_address, storage};
pub use self::library::{Librdmacm, LibrdmacmError, librdmacm};

use crate::generated::verbs::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_type, ibv_srq,
};

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// `struct ibv_sa_path_rec` of `<infiniband/sa.h>`. Numbers of more than one byte are big-endian, except for the `int`s.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_sa_path_rec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// `struct rdma_ib_addr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub pkey: u16,
}

/// `struct rdma_route`, with the `struct rdma_addr` at its beginning.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub src: libc::sockaddr_storage,
    pub dst: libc::sockaddr_storage,
    pub ib: rdma_ib_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

/// `enum rdma_port_space`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct rdma_port_space(pub u32);

impl rdma_port_space {
    pub const IPOIB: Self = Self(0x0002);
    pub const TCP: Self = Self(0x0106);
    pub const UDP: Self = Self(0x0111);
    pub const IB: Self = Self(0x013f);
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}

/// The value of `responder_resources` and `initiator_depth` that means the device's maximum.
pub const DEVICE_MAXIMUM: u8 = 0xff;

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// The `param` of `struct rdma_cm_event`.
#[repr(C)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

/// `struct rdma_cm_join_mc_attr_ex`. Its `comp_mask` is 1 for the address, and 2 for the flags.
#[repr(C)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

/// `struct rdma_addrinfo`.
#[repr(C)]
pub struct rdma_addrinfo {
    pub flags: c_int,
    pub family: c_int,
    pub qp_type: c_int,
    pub port_space: c_int,
    pub src_len: libc::socklen_t,
    pub dst_len: libc::socklen_t,
    pub src_addr: *mut libc::sockaddr,
    pub dst_addr: *mut libc::sockaddr,
    pub src_canonname: *mut c_char,
    pub dst_canonname: *mut c_char,
    pub route_len: usize,
    pub route: *mut c_void,
    pub connect_len: usize,
    pub connect: *mut c_void,
    pub next: *mut rdma_addrinfo,
}

/// The options of `rdma_set_option`: the level, and the name.
pub mod option {
    use std::ffi::c_int;

    /// The traffic class, a `u8`.
    pub const TOS: (c_int, c_int) = (0, 0);
    /// Whether the port is shared, an `int`.
    pub const REUSEADDR: (c_int, c_int) = (0, 1);
    /// Whether only one IP version is accepted, an `int`.
    pub const AFONLY: (c_int, c_int) = (0, 2);
    /// The time to wait for an acknowledgement, a `u8`.
    pub const ACK_TIMEOUT: (c_int, c_int) = (0, 3);
    /// The path records, an array of `ibv_path_data`.
    pub const PATH: (c_int, c_int) = (1, 1);
}

/// Defines `enum rdma_cm_event_type`, whose numbers begin at 0.
macro_rules! event_types {
    ($($name:ident = $number:literal)+) => {
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct rdma_cm_event_type(pub u32);

        impl rdma_cm_event_type {
            $(pub const $name: Self = Self($number);)+

            /// Returns the name in C.
            pub const fn name(self) -> &'static std::ffi::CStr {
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
    assert!(size_of::<rdma_cm_id>() == 416);
    assert!(offset_of!(rdma_cm_id, route) == 32);
    assert!(offset_of!(rdma_cm_id, ps) == 344);
    assert!(offset_of!(rdma_cm_id, port_num) == 348);
    assert!(offset_of!(rdma_cm_id, event) == 352);
    assert!(offset_of!(rdma_cm_id, recv_cq) == 384);
    assert!(offset_of!(rdma_cm_id, qp_type) == 408);
    assert!(size_of::<rdma_ib_addr>() == 40);
    assert!(size_of::<rdma_route>() == 312);
    assert!(offset_of!(rdma_route, ib) == 256);
    assert!(offset_of!(rdma_route, path_rec) == 296);
    assert!(size_of::<rdma_conn_param>() == 24);
    assert!(offset_of!(rdma_conn_param, qp_num) == 16);
    assert!(size_of::<rdma_ud_param>() == 56);
    assert!(offset_of!(rdma_ud_param, ah_attr) == 16);
    assert!(offset_of!(rdma_ud_param, qkey) == 52);
    assert!(size_of::<rdma_cm_join_mc_attr_ex>() == 16);
    assert!(size_of::<rdma_cm_event>() == 80);
    assert!(offset_of!(rdma_cm_event, status) == 20);
    assert!(offset_of!(rdma_cm_event, param) == 24);
    assert!(size_of::<rdma_addrinfo>() == 96);
    assert!(offset_of!(rdma_addrinfo, connect) == 80);
    assert!(size_of::<ibv_sa_path_rec>() == 64);
    assert!(offset_of!(ibv_sa_path_rec, dlid) == 32);
    assert!(offset_of!(ibv_sa_path_rec, pkey) == 54);
    assert!(offset_of!(ibv_sa_path_rec, mtu) == 58);
    assert!(offset_of!(ibv_sa_path_rec, preference) == 63);
};
