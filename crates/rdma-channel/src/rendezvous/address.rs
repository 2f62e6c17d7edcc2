//! Addresses of names and of streams.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;

use rdma_connect::ConnectError;
use rustix::net::{SocketAddrAny, getpeername, getsockname};

/// The addresses of a stream, this end's and the peer's, if they are known.
pub type StreamAddresses = Option<(IpAddr, IpAddr)>;

/// The addresses of a TCP stream.
pub fn addresses_of(stream: impl AsFd) -> StreamAddresses {
    let ip =
        |address: SocketAddrAny| SocketAddr::try_from(address).ok().map(|address| address.ip());
    let (own, peer) = (getsockname(&stream).ok()?, getpeername(&stream).ok()??);
    Some((ip(own)?, ip(peer)?))
}

/// All addresses of a name, at least one.
pub(crate) fn resolve(name: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, ConnectError> {
    let addresses: Vec<_> =
        name.to_socket_addrs().map_err(|source| ConnectError::Resolve { source })?.collect();
    if addresses.is_empty() { Err(ConnectError::NoAddress) } else { Ok(addresses) }
}
