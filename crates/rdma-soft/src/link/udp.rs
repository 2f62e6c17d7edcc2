//! The link to other hosts: RoCEv2 in UDP datagrams, from and to port 4791.
//!
//! A device listens only at the addresses that it was configured with. Each address has its own socket, which is never
//! connected. On such sockets, the kernel sends with the IPv4 identification 0, or with 0, 1, 2 and so on for the
//! segments of one call. The ICRC, which covers the identification, can therefore be computed before the call.

mod address;
mod coalesced;
mod open;
mod outgoing;
mod packet;
mod port;
mod receiver;
mod socket;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use rdma_proto::wire::UdpHeader;
use rdma_types::{Gid, GidType, Mtu};
use rustix::io::Errno;

use self::address::LocalAddress;
pub(crate) use self::outgoing::Loss;
use self::port::Port;
use self::socket::Socket;
use super::driver::Driver;
use crate::address::GidEntry;
use crate::device::Device;
use crate::device::network::Network;
use crate::device::subnet::{InstallError, Subnet};

/// The maximum number of bytes around the payload, from the IP header to the ICRC, as RXE counts them.
const MOST_HEADERS: u32 = 80;

/// The addresses at which a device will listen, each with its socket.
#[derive(Debug)]
pub(crate) struct Listening {
    sockets: Vec<(LocalAddress, Socket)>,
}

impl Listening {
    /// Binds the addresses in `places`: IP addresses and interface names, separated by commas.
    pub(crate) fn at(subnet: &'static Subnet, places: &[String]) -> Result<Self, InstallError> {
        let mut sockets: Vec<(LocalAddress, Socket)> = Vec::new();
        for place in places.iter().flat_map(|places| places.split(',')).map(str::trim) {
            let failed =
                |reason: String| InstallError::CannotListen { place: place.to_owned(), reason };
            Driver::of(subnet)
                .map_err(|errno| failed(format!("cannot create an epoll instance: {errno}")))?;
            for address in address::named(place).map_err(failed)? {
                if sockets.iter().any(|(other, _)| other.ip == address.ip) {
                    continue;
                }
                mtu_of(&address).ok_or_else(|| {
                    let least = Mtu::MTU256.bytes() + MOST_HEADERS;
                    failed(format!(
                        "the MTU of its interface is {}: set it to {least} or more, to 4200 for the largest packets",
                        address.mtu
                    ))
                })?;
                let socket =
                    Socket::bind(&address).map_err(|errno| failed(reason(&address, errno)))?;
                sockets.push((address, socket));
            }
        }
        Ok(Self { sockets })
    }

    /// Returns the entries for the device's GID table, each with the index of its interface.
    pub(crate) fn addresses(&self) -> Vec<(GidEntry, u32)> {
        let row = |address: &LocalAddress| (entry(address.ip), address.interface);
        self.sockets.iter().map(|(address, _)| row(address)).collect()
    }

    /// Returns the largest MTU that all of the interfaces can carry.
    pub(crate) fn mtu(&self) -> Option<Mtu> {
        self.sockets.iter().filter_map(|(address, _)| mtu_of(address)).min()
    }

    /// Starts sending and receiving packets.
    pub(crate) fn begin(self, device: &'static Device, loss: Option<Loss>) {
        let Ok(driver) = Driver::of(device.subnet) else { return };
        let mut networks: Vec<Arc<dyn Network>> = Vec::new();
        let mut receiving = Vec::new();
        for (address, socket) in self.sockets {
            let way = (address.interface, address.ip.is_ipv4());
            let receives_groups = !receiving.contains(&way);
            receiving.push(way);
            match Port::open(driver, device, address, socket, receives_groups, loss) {
                Ok(port) => networks.push(port),
                Err(errno) => {
                    tracing::error!(device = device.name, address = %address.ip, %errno, "no packets are received at an address");
                }
            }
        }
        device.open_networks(networks);
    }
}

/// Returns the index of the loopback interface, if there is one in this network namespace.
pub(crate) fn loopback() -> Option<u32> {
    address::index("lo")
}

/// Returns the GID table entry for an address.
fn entry(ip: IpAddr) -> GidEntry {
    let gid = match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip),
        IpAddr::V6(ip) => Gid::from_bytes(ip.octets()),
    };
    GidEntry { gid, kind: GidType::ROCE_V2 }
}

/// Returns the address for a GID; the inverse of [`entry`].
fn address(gid: Gid) -> IpAddr {
    gid.to_ipv4().map_or_else(|| IpAddr::V6(gid.to_bytes().into()), IpAddr::V4)
}

/// Returns the largest MTU that an interface can carry.
fn mtu_of(address: &LocalAddress) -> Option<Mtu> {
    let all = [Mtu::MTU4096, Mtu::MTU2048, Mtu::MTU1024, Mtu::MTU512, Mtu::MTU256];
    all.into_iter().find(|mtu| mtu.bytes() + MOST_HEADERS <= address.mtu)
}

/// Describes why an address could not be bound, and suggests a remedy.
fn reason(address: &LocalAddress, errno: Errno) -> String {
    let port = UdpHeader::ROCE_V2_PORT;
    match errno {
        Errno::ADDRINUSE => format!(
            "UDP port {port} of {} is in use, by another process that listens there, or by the kernel's SoftRoCE \
             (rdma_rxe), which takes it for all addresses: end that process, listen at another address, or in another \
             network namespace",
            address.ip
        ),
        Errno::ADDRNOTAVAIL => format!("this host has no address {}: see `ip address`", address.ip),
        Errno::ACCESS | Errno::PERM => format!(
            "this process may not bind UDP port {port} of {} ({errno}): look at its seccomp filter and its security \
             module",
            address.ip
        ),
        errno => format!("cannot bind UDP port {port} of {}: {errno}", address.ip),
    }
}
