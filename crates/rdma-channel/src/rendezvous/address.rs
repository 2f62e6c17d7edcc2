//! Name resolution.

use std::net::{SocketAddr, ToSocketAddrs};

use rdma_connect::ConnectError;

/// Returns all addresses of a name. There is at least one.
pub(crate) fn resolve(name: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, ConnectError> {
    let addresses: Vec<_> =
        name.to_socket_addrs().map_err(|source| ConnectError::Resolve { source })?.collect();
    if addresses.is_empty() { Err(ConnectError::NoAddress) } else { Ok(addresses) }
}
