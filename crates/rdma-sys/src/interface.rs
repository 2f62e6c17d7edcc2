//! The network interfaces of this host and their addresses, as the C library lists them.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use crate::cm::read_address;
use crate::errno::Errno;

/// An entry of [`interface_addresses`]: an interface with one of its addresses, or an interface
/// that has none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterfaceAddress {
    /// The name of the interface.
    pub interface: String,
    /// Whether the interface is a loopback interface.
    pub is_loopback: bool,
    /// An IP address, without a port. The scope of a link-local address is the index of its
    /// interface. `None` for an address of another kind, or if the interface has no address.
    pub address: Option<SocketAddr>,
    /// The mask of the address.
    pub mask: Option<IpAddr>,
}

/// Returns the interfaces of this network namespace, with an entry for each address.
///
/// # Errors
/// Returns an error if the kernel does not list them, or if a process limit leaves no memory or file
/// for the list.
///
/// ```
/// for entry in rdma_sys::interface_addresses()? {
///     println!("{}: {:?}", entry.interface, entry.address);
/// }
/// # Ok::<(), rdma_sys::Errno>(())
/// ```
#[doc(alias = "getifaddrs")]
pub fn interface_addresses() -> Result<Vec<InterfaceAddress>, Errno> {
    let mut first = ptr::null_mut();
    // SAFETY: SAFETY.md F15: the call stores the address of a list in `first`, or fails.
    Errno::check_minus_one(unsafe { libc::getifaddrs(&raw mut first) })?;
    let list = List(first);
    Ok(list.entries().map(|entry| entry.read()).collect())
}

/// The list that `getifaddrs` allocated.
struct List(*mut libc::ifaddrs);

impl List {
    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        // SAFETY: SAFETY.md F15: the pointer is NULL, or an entry in the list, which does not
        // change while `self` is borrowed.
        let at = |entry: *mut libc::ifaddrs| unsafe { entry.as_ref() }.map(Entry);
        iter::successors(at(self.0), move |entry| at(entry.0.ifa_next))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: SAFETY.md F15: the list comes from `getifaddrs`, is freed once, and is no longer
        // borrowed.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// An entry in a list that is not freed yet.
struct Entry<'a>(&'a libc::ifaddrs);

impl Entry<'_> {
    fn read(&self) -> InterfaceAddress {
        // SAFETY: SAFETY.md F15: the entry's name ends with a zero byte, and is freed together with
        // the list.
        let name = unsafe { CStr::from_ptr(self.0.ifa_name) };
        // SAFETY: SAFETY.md F15: the pointer is NULL, or an address in this entry.
        let address = unsafe { ip(self.0.ifa_addr) };
        // SAFETY: SAFETY.md F15: the pointer is NULL, or an address in this entry.
        let mask = unsafe { ip(self.0.ifa_netmask) };
        InterfaceAddress {
            interface: name.to_string_lossy().into_owned(),
            is_loopback: self.0.ifa_flags & libc::IFF_LOOPBACK.cast_unsigned() != 0,
            address,
            mask: mask.map(|mask| mask.ip()),
        }
    }
}

/// Reads an IP address, without a port; returns `None` for NULL and for other kinds of address.
///
/// # Safety
/// `address` is NULL, or is an address in an [`Entry`].
unsafe fn ip(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: SAFETY.md F15: an address in the list has the length of its family, and is freed together with the list.
    let mut address = unsafe { read_address(address) }?;
    address.set_port(0);
    Some(address)
}

#[cfg(all(test, not(miri)))] // miri has no getifaddrs
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed_with_its_address_and_mask() {
        let all = interface_addresses().unwrap();
        // A separate network namespace may not have any interface that is up.
        let Some(own) = all
            .iter()
            .find(|entry| entry.address.is_some_and(|own| own.ip().is_loopback() && own.is_ipv4()))
        else {
            return;
        };
        assert!(own.is_loopback && !own.interface.is_empty(), "{own:?}");
        assert_eq!(own.mask, Some(IpAddr::from([255, 0, 0, 0])));
        let named = all.iter().filter(|entry| entry.interface == own.interface);
        assert!(named.into_iter().all(|entry| entry.is_loopback), "{all:?}");
    }
}
