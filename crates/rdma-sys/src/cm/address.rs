//! The conversion of socket addresses.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::generated::verbs::ibv_gid;

/// Returns a socket address, or `None` if its family is neither IPv4 nor IPv6, or the pointer is NULL.
///
/// # Safety
/// The pointer is NULL, or points to an address of the length of its family.
#[must_use]
pub unsafe fn read_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
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
///
/// ```
/// use rdma_sys::cm::{read_address, storage};
///
/// let address = "192.0.2.7:7471".parse().unwrap();
/// let bytes = storage(address);
/// // SAFETY: the pointer is that of a live address.
/// assert_eq!(unsafe { read_address((&raw const bytes).cast()) }, Some(address));
/// ```
#[must_use]
pub fn storage(address: SocketAddr) -> libc::sockaddr_storage {
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

impl ibv_gid {
    /// Returns the bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; 16] {
        // SAFETY: SAFETY.md F4: both union members are plain bytes of the same size.
        unsafe { self.raw }
    }
}
