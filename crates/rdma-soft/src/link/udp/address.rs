//! Resolves a name to addresses of this host.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::abi::interface::{InterfaceAddress, interface_addresses};

/// An address of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalAddress {
    pub(super) ip: IpAddr,
    /// The index of the interface if the address is valid only there, otherwise 0.
    pub(super) scope: u32,
    /// The index of the interface that has the address.
    pub(super) interface: u32,
    /// The MTU of the interface, in bytes.
    pub(super) mtu: u32,
}

/// A network interface and its addresses.
#[derive(Debug, Default)]
struct Interface {
    is_loopback: bool,
    addresses: Vec<(IpAddr, u32)>,
}

/// The MTU that is assumed if the kernel does not report one.
const USUAL_MTU: u32 = 1500;

/// Returns the addresses that a name denotes: the address itself, or the addresses of an interface.
pub(super) fn named(place: &str) -> Result<Vec<LocalAddress>, String> {
    let interfaces = interfaces()?;
    match place.parse::<IpAddr>() {
        Ok(ip) => one(ip, &interfaces).map(|own| vec![own]),
        Err(_) => all_of(place, &interfaces),
    }
}

fn one(ip: IpAddr, interfaces: &BTreeMap<String, Interface>) -> Result<LocalAddress, String> {
    if ip.is_unspecified() || ip.is_multicast() {
        return Err("packets need one source address: name an address of this host".to_owned());
    }
    let exactly = |(name, interface): (&String, &Interface)| {
        let found = interface.addresses.iter().find(|(own, _)| *own == ip);
        found.map(|&(ip, scope)| of_interface(ip, scope, name))
    };
    // All of 127.0.0.0/8 belongs to the loopback interface.
    let loopback = |(name, interface): (&String, &Interface)| {
        let there = interface.is_loopback && ip.is_loopback();
        there.then(|| of_interface(ip, 0, name))
    };
    let found = interfaces.iter().find_map(exactly);
    found.or_else(|| interfaces.iter().find_map(loopback)).ok_or_else(|| {
        let own = interfaces.values().flat_map(|interface| &interface.addresses);
        format!("this host has no such address; it has {}", list(own.map(|(ip, _)| ip.to_string())))
    })
}

/// Returns an interface's addresses in the order of RXE's GID table: link-local, IPv4, IPv6.
fn all_of(
    place: &str,
    interfaces: &BTreeMap<String, Interface>,
) -> Result<Vec<LocalAddress>, String> {
    let Some(interface) = interfaces.get(place) else {
        let names = list(interfaces.keys().cloned());
        return Err(format!(
            "it is neither an IP address nor an interface of this host: there are {names}"
        ));
    };
    let mut addresses = interface.addresses.clone();
    addresses.sort_by_key(|(ip, scope)| (*scope == 0, ip.is_ipv6()));
    let addresses: Vec<_> =
        addresses.into_iter().map(|(ip, scope)| of_interface(ip, scope, place)).collect();
    if addresses.is_empty() {
        return Err("the interface has no address: give it one (`ip address add`)".to_owned());
    }
    Ok(addresses)
}

fn list(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn interfaces() -> Result<BTreeMap<String, Interface>, String> {
    let found = interface_addresses()
        .map_err(|errno| format!("cannot list the interfaces of this host: {errno}"))?;
    let mut interfaces = BTreeMap::<String, Interface>::new();
    for InterfaceAddress { interface, is_loopback, address, .. } in found {
        let interface = interfaces.entry(interface).or_default();
        interface.is_loopback |= is_loopback;
        interface.addresses.extend(address.map(|address| match address {
            SocketAddr::V4(v4) => (IpAddr::from(*v4.ip()), 0),
            SocketAddr::V6(v6) => (IpAddr::from(*v6.ip()), v6.scope_id()),
        }));
    }
    Ok(interfaces)
}

fn of_interface(ip: IpAddr, scope: u32, name: &str) -> LocalAddress {
    LocalAddress { ip, scope, interface: index(name).unwrap_or(scope), mtu: mtu(name) }
}

/// Returns the index of an interface, if this network namespace contains it.
pub(super) fn index(interface: &str) -> Option<u32> {
    let any = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    name_to_index(any.ok()?, interface).ok()
}

fn mtu(interface: &str) -> u32 {
    let file = fs::read_to_string(format!("/sys/class/net/{interface}/mtu"));
    file.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(USUAL_MTU)
}
