//! A UDP socket with the options that RoCEv2 needs.

use std::io::{Error, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rdma_proto::wire::UdpHeader;
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, getsockname, sendto,
    socket_with, sockopt,
};

use super::address::LocalAddress;
use crate::link::descriptor::{Descriptor, set_flag};

/// The size of the kernel's receive and send buffers, enough for several windows of packets.
const BUFFER: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Socket {
    descriptor: Descriptor,
    state: UdpSocketState,
    is_ipv4: bool,
    scope: u32,
}

impl Socket {
    /// Opens a socket that sends and receives at an address.
    pub(super) fn bind(own: &LocalAddress) -> Result<Self> {
        let bound = Self::new(own, own.ip, |_| Ok(()))?;
        let socket = bound.descriptor.get()?;
        // Datagrams to groups leave through the same interface. If this fails, the first such datagram fails.
        let _ = match own.ip {
            IpAddr::V4(ip) => sockopt::set_ip_multicast_if(socket, &ip),
            IpAddr::V6(_) => sockopt::set_ipv6_multicast_if(socket, own.interface),
        };
        Ok(bound)
    }

    /// Opens a socket that receives packets to a group. Other sockets of this host may also join the group.
    pub(super) fn join(own: &LocalAddress, group: IpAddr) -> Result<Self> {
        let joined = Self::new(own, group, |socket| sockopt::set_socket_reuseaddr(socket, true))?;
        let socket = joined.descriptor.get()?;
        match (group, own.ip) {
            (IpAddr::V4(group), IpAddr::V4(own)) => {
                sockopt::set_ip_add_membership(socket, &group, &own)?;
            }
            (IpAddr::V6(group), _) => {
                sockopt::set_ipv6_add_membership(socket, &group, own.interface)?;
            }
            _ => return Err(Errno::AFNOSUPPORT),
        }
        Ok(joined)
    }

    fn new(
        own: &LocalAddress,
        ip: IpAddr,
        prepare: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
    ) -> Result<Self> {
        let is_ipv4 = ip.is_ipv4();
        let descriptor = Descriptor::open(|| datagrams(is_ipv4))?;
        let socket = descriptor.get()?;
        prepare(socket)?;
        if !is_ipv4 {
            sockopt::set_ipv6_v6only(socket, true)?;
            // Over IPv6, RXE sends datagrams without a UDP checksum, because they have an ICRC (udp(7), RFC 6936). If
            // the kernel lacks this option, only RXE's packets are lost.
            let _ = set_flag(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, true);
            // Otherwise an address cannot be bound in the seconds in which the kernel checks for duplicates of it
            // (ipv6(7), RFC 4862), as in a container that has just started. If the kernel lacks this option, only such an
            // address is refused.
            let _ = set_flag(socket, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, true);
        }
        // Without the privilege to exceed the kernel's usual maximum, that maximum applies.
        let _ = sockopt::set_socket_recv_buffer_size_force(socket, BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, BUFFER));
        let _ = sockopt::set_socket_send_buffer_size_force(socket, BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(socket, BUFFER));
        // A group address that is not global belongs to an interface.
        let scope = if ip.is_multicast() { own.interface } else { own.scope };
        bind(socket, &at(ip, scope))?;
        let state = UdpSocketState::new((&socket).into()).map_err(|error| errno(&error))?;
        // The library requests more information about each packet than is used here, and it takes time to collect.
        let _ = set_flag(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, false);
        if !ip.is_multicast() {
            let _ = match is_ipv4 {
                true => set_flag(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, false),
                false => set_flag(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, false),
            };
        }
        Ok(Self { descriptor, state, is_ipv4, scope: own.scope })
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns the maximum number of packets that one call can send.
    pub(super) fn most_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends packets of `segment` bytes each to an address. The last packet may be shorter.
    pub(super) fn send(
        &self,
        to: IpAddr,
        ecn: Option<EcnCodepoint>,
        packets: &[u8],
        segment: usize,
    ) -> Result<()> {
        let socket = self.descriptor.get()?;
        let destination = at(to, self.scope);
        if ecn.is_none() && packets.len() <= segment {
            // The library always passes control data, which the kernel takes 100 ns to process.
            return retry_on_intr(|| sendto(socket, packets, SendFlags::empty(), &destination))
                .map(drop);
        }
        let transmit = Transmit {
            destination,
            ecn,
            contents: packets,
            segment_size: Some(segment),
            src_ip: None,
        };
        self.state.try_send((&socket).into(), &transmit).map_err(|error| errno(&error))
    }

    /// Receives the next packets, all from one sender. Each packet except the last has the length
    /// [`stride`](RecvMeta::stride).
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<RecvMeta> {
        let socket = self.descriptor.get()?;
        let mut meta = [RecvMeta::default()];
        let mut rooms = [IoSliceMut::new(room)];
        self.state.recv((&socket).into(), &mut rooms, &mut meta).map_err(|error| errno(&error))?;
        Ok(meta[0])
    }

    /// Sets the hop limit of later packets.
    pub(super) fn set_hops(&self, hops: u8) -> Result<()> {
        let socket = self.descriptor.get()?;
        match self.is_ipv4 {
            true => sockopt::set_ip_multicast_ttl(socket, hops.into())
                .and_then(|()| sockopt::set_ip_ttl(socket, hops.into())),
            false => sockopt::set_ipv6_multicast_hops(socket, hops.into())
                .and_then(|()| sockopt::set_ipv6_unicast_hops(socket, Some(hops))),
        }
    }

    /// Checks that the host has a route to an address.
    pub(super) fn reaches(&self, to: IpAddr) -> Result<()> {
        self.source_to(to).map(|_| ())
    }

    /// Returns the source address of the host's route to an address.
    pub(super) fn source_to(&self, to: IpAddr) -> Result<IpAddr> {
        let probe = Descriptor::open(|| datagrams(to.is_ipv4()))?;
        connect(probe.get()?, &at(to, self.scope))?;
        let source = getsockname(probe.get()?)?;
        SocketAddr::try_from(source).map(|source| source.ip())
    }
}

fn datagrams(is_ipv4: bool) -> Result<std::os::fd::OwnedFd> {
    let family = if is_ipv4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::DGRAM, flags, None)
}

fn at(ip: IpAddr, scope: u32) -> SocketAddr {
    let port = UdpHeader::ROCE_V2_PORT;
    match ip {
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, port),
    }
}

fn errno(error: &Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
