//! The errors of connecting, and the ends of connections.

mod awaited;
mod cure;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rdma_mem::{LinkLayer, Mtu};
use rdma_proto::cm::Error as Refusal;
use rdma_proto::cm::wire::Reason;
use rdma_qp::QueuePairType;
use rdma_sys::cm::LibrdmacmError;
use rdma_types::Qpn;

pub use self::awaited::Awaited;
use self::cure::{Shown, of_rejection, of_system, reached_by};
use crate::parameters::QKEY;

/// The reason that a connection has ended, or was not established.
///
/// Private data has the length of its field in the message, padded with zeros, as in C.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// The peer rejected the connection (`RDMA_CM_EVENT_REJECTED`). The private data has 148 bytes. It is empty if the
    /// port has no listener.
    #[error(
        "the peer rejected the connection: {reason}{}; {}",
        Shown(private_data),
        of_rejection(*reason)
    )]
    Rejected {
        /// The peer's reason. [`Reason::INVALID_SERVICE_ID`] means that the port has no listener, and
        /// [`Reason::CONSUMER_DEFINED`] that the peer's program rejected the connection.
        reason: Reason,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// This end refused the peer's reply.
    #[error("this end refused the peer's reply: {reason}; {}", of_rejection(*reason))]
    Refused {
        /// The reason that this end sent to the peer.
        reason: Reason,
    },
    /// The protocol's time limit of a phase has passed (`RDMA_CM_EVENT_UNREACHABLE`, `RDMA_CM_EVENT_ADDR_ERROR`).
    #[error("{phase}: check {}", phase.remedy())]
    Unanswered {
        /// The phase.
        phase: Phase,
    },
    /// The peer's process exited, or dropped its end before the connection was established.
    #[error(
        "the peer's process exited, or dropped its end: check that its program is running, and connect again"
    )]
    PeerGone,
    /// Too many connections already wait for the listener.
    #[error(
        "too many connections wait for the listener: check that its program calls `incoming`, and retry"
    )]
    Busy,
    /// A process of another user listens at the port.
    #[error("a process of another user listens at the port: run both ends as the same user")]
    OtherUser,
    /// The kernel's rdma_cm could not go on (`RDMA_CM_EVENT_ADDR_ERROR`, `RDMA_CM_EVENT_ROUTE_ERROR`,
    /// `RDMA_CM_EVENT_CONNECT_ERROR`).
    #[error(
        "the kernel's rdma_cm could not {tried}: {}; check `ip route get` and `ip neigh` for the address",
        io::Error::from_raw_os_error(*errno)
    )]
    Kernel {
        /// The attempted action.
        tried: &'static str,
        /// The number of the system's error.
        errno: i32,
    },
    /// The device was removed (`RDMA_CM_EVENT_DEVICE_REMOVAL`).
    #[error("the RDMA device was removed: open it again once it is back")]
    DeviceRemoved,
    /// One end disconnected (`RDMA_CM_EVENT_DISCONNECTED`). The private data has at most 224 bytes. It is empty if the
    /// peer's process exited.
    #[error("the connection was disconnected: connect again")]
    Disconnected {
        /// The peer's private data.
        private_data: Vec<u8>,
    },
}

/// A phase of connecting that has a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The kernel resolves the address and the route.
    Resolve,
    /// The listener's end answers the request or the query.
    Connect,
    /// The client's end confirms the accepted connection.
    Accept,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resolve => "no host answered for the address",
            Self::Connect => "the peer did not answer the request",
            Self::Accept => "the peer did not confirm the accepted connection",
        })
    }
}

impl Phase {
    /// Returns what to check if the phase takes too long.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Resolve => {
                "`ip route get` and `ip neigh` for the address, and that its host runs"
            }
            Self::Connect | Self::Accept => {
                "that its program calls `next` or `wait`; on another host, also that its device listens at the address, and \
                 that no firewall drops UDP port 4791, or on iWARP the TCP port"
            }
        }
    }
}

rdma_types::debug_messages!(enum End {
    Rejected { reason, private_data }, Refused { reason }, Unanswered { phase }, PeerGone, Busy, OtherUser,
    Kernel { tried, errno }, DeviceRemoved, Disconnected { private_data },
});

/// An error of this crate.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_cm::{Awaited, Error};
///
/// let error = Error::TimedOut { awaited: Awaited::Request, limit: Duration::from_secs(2) };
/// let expected = "a request did not arrive within 2s: check that the client connects to this \
///                 address and port, or wait again";
/// assert_eq!(error.to_string(), expected);
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection has ended, or was not established.
    #[error(transparent)]
    Ended(#[from] End),
    /// No event arrived within the limit.
    #[error("{awaited} did not arrive within {limit:?}: {}", awaited.cure())]
    TimedOut {
        /// The event that the caller waited for.
        awaited: Awaited,
        /// The limit that the caller passed.
        limit: Duration,
    },
    /// The event channel was closed.
    #[error("the event channel was closed: open another one")]
    Closed,
    /// The host name has no address, or is not `host:port`.
    #[error(
        "the address could not be resolved: {0}; check the name (`getent ahosts NAME`), and pass `host:port`"
    )]
    Resolve(#[source] io::Error),
    /// The address does not belong to this host, and the device reaches no other host.
    #[error(
        "{address} does not belong to this host, and `{device}` reaches no other: {}",
        reached_by(*link_layer)
    )]
    NotThisHost {
        /// The address.
        address: IpAddr,
        /// The device.
        device: String,
        /// The link layer of the device's port. Software devices of InfiniBand cannot listen at addresses.
        link_layer: LinkLayer,
    },
    /// The host has no route to the address from an address of the device.
    #[error(
        "`{device}` has no route to {address}: check `ip route get {address}`, and that the device has an address of that \
         network and of the same IP version (`rdma link`), or listens there (RDMA_SOFT_LISTEN, `Builder::listen`)"
    )]
    NoRoute {
        /// The address.
        address: IpAddr,
        /// The device.
        device: String,
    },
    /// The kernel reaches the address through another device.
    #[error(
        "{address} leads through `{found}`, not through `{device}`: open `{found}`, or use an address of a network to which \
         `{device}` belongs (`rdma link`, `ip address`)"
    )]
    OtherDevice {
        /// The address.
        address: IpAddr,
        /// The device of the channel.
        device: String,
        /// The device that the kernel chose.
        found: String,
    },
    /// The address is not that of a multicast group.
    #[error("{address} is no multicast address: use one of 224.0.0.0/4 or ff00::/8")]
    NotGroup {
        /// The address.
        address: IpAddr,
    },
    /// The address of a listener does not belong to this host.
    #[error(
        "{address} does not belong to this host: listen at one of its addresses (`ip address`), or at 0.0.0.0 for all of \
         them"
    )]
    NotOwn {
        /// The address.
        address: IpAddr,
    },
    /// Another listener, or another owner of a shared port, has the port. A forked child has it too, as with TCP, until
    /// it executes another program or ends. With the kernel's rdma_cm, a child has no port.
    #[error("port {port} of `{device}` is in use: use another port, or 0 for any free one")]
    PortInUse {
        /// The port.
        port: u16,
        /// The device.
        device: String,
    },
    /// The kernel's rdma_cm reserves the port for privileged processes.
    #[error(
        "port {port} is reserved: use a port from 1024 on (`sysctl net.ipv4.ip_unprivileged_port_start`), or run the \
         program with the capability CAP_NET_BIND_SERVICE"
    )]
    PortReserved {
        /// The port.
        port: u16,
    },
    /// Private data is longer than its field in the message.
    #[error("{length} bytes of private data do not fit into a {message}: pass at most {most}")]
    PrivateData {
        /// The message: `REQ`, `REP`, `REJ` or `DREQ`.
        message: &'static str,
        /// The length that was passed.
        length: usize,
        /// The maximum length.
        most: usize,
    },
    /// The queue pair's MTU is smaller than the one that the peer requested. The peer was rejected.
    #[error(
        "the peer requested an MTU of {peer}, but the queue pair has {own}: build it without `mtu`"
    )]
    Mtu {
        /// The MTU of this end's queue pair.
        own: Mtu,
        /// The peer's MTU.
        peer: Mtu,
    },
    /// Queue pairs of this type are not connected.
    #[error("queue pairs of type {qp_type} are not connected: build one of type RC or UC")]
    NotConnected {
        /// The type.
        qp_type: QueuePairType,
    },
    /// The kernel's rdma_cm connects only reliable queue pairs.
    #[error(
        "the kernel's rdma_cm does not connect queue pairs of type {qp_type}: build one of type RC"
    )]
    NotReliable {
        /// The type.
        qp_type: QueuePairType,
    },
    /// The device speaks iWARP, which has neither datagrams nor multicast groups.
    #[error("`{device}` speaks iWARP, which has no datagrams: use connections, or another device")]
    NoDatagrams {
        /// The device.
        device: String,
    },
    /// The module [`unmanaged`](crate::unmanaged) has connections of software devices only. Of other devices, it has
    /// datagram services.
    #[error(
        "the module `unmanaged` has no connections of `{device}`, which pass through the kernel's rdma_cm: use `Listener` and \
         `EventChannel::resolve`, or datagram services in the UDP port space"
    )]
    Managed {
        /// The device.
        device: String,
    },
    /// The kernel's rdma_cm answers queries only with the Q_Key [`QKEY`](crate::unmanaged::QKEY).
    #[error(
        "the kernel's rdma_cm does not answer with the Q_Key {qkey:#x}: activate the queue pair with {QKEY:#x}"
    )]
    QueueKey {
        /// The Q_Key that was passed.
        qkey: u32,
    },
    /// The system's librdmacm, through which the system's devices connect, cannot be loaded.
    #[error(transparent)]
    Library(#[from] LibrdmacmError),
    /// The kernel's rdma_cm cannot be opened.
    #[error(
        "the kernel's rdma_cm cannot be opened: {source}; load its module (`modprobe rdma_ucm`), and check the permissions \
         of /dev/infiniband/rdma_cm; connections that exchange their addresses over TCP do not need it"
    )]
    NoKernel {
        /// The system's error.
        source: io::Error,
    },
    /// The device's port has no address from which a connection could lead to the peer.
    #[error(
        "the port of `{device}` has no address: check that it is active and has a GID (`rdmatool doctor`, `ibv_devinfo -v`)"
    )]
    NoAddress {
        /// The device.
        device: String,
    },
    /// The queue pair was created on another device than the channel's, or on a device with the same name of another
    /// provider.
    #[error(
        "the queue pair belongs to `{found}`{}, but the channel to `{device}`: create it on the channel's device",
        if found == device { " of another provider" } else { "" }
    )]
    OtherQueuePair {
        /// The device of the channel.
        device: String,
        /// The device of the queue pair.
        found: String,
    },
    /// Another connection has a queue pair with the same number, or had one and has just ended.
    #[error(
        "another connection has QPN {qpn}, or had it a moment ago: use another queue pair, or try again after a second"
    )]
    QueuePairInUse {
        /// The number of the queue pair.
        qpn: Qpn,
    },
    /// The channel has as many connections to other hosts as it can have.
    #[error(
        "the channel has its maximum of {most} connections to other hosts: end some, or open another channel"
    )]
    TooManyConnections {
        /// The maximum number.
        most: u32,
    },
    /// An error of the device, or a call in a forked child ([`Forked`](rdma_mem::Error::Forked)).
    #[error(transparent)]
    Memory(#[from] rdma_mem::Error),
    /// The queue pair could not be connected.
    #[error(transparent)]
    Connect(#[from] rdma_qp::Error),
    /// The system refused a file or socket, or the kernel's rdma_cm a call.
    #[error("the connection manager cannot {tried}: {source}; {}", of_system(source))]
    System {
        /// The attempted action.
        tried: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

rdma_types::debug_messages!(enum Error {
    Ended(it), TimedOut { awaited, limit }, Closed, Resolve(it), NotThisHost { address, device, link_layer },
    NoRoute { address, device }, OtherDevice { address, device, found }, NotGroup { address }, NotOwn { address },
    NotReliable { qp_type }, NoDatagrams { device }, Managed { device }, QueueKey { qkey }, Library(it), NoKernel { source },
    PortInUse { port, device }, PortReserved { port }, PrivateData { message, length, most }, Mtu { own, peer },
    NotConnected { qp_type }, NoAddress { device }, OtherQueuePair { device, found }, QueuePairInUse { qpn },
    TooManyConnections { most }, Memory(it), Connect(it), System { tried, source },
});

impl Error {
    /// Returns a conversion of system errors.
    pub(crate) fn system(tried: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { tried, source: errno.into() }
    }

    /// Returns the error of a refused call, with the reason that the connection has ended.
    pub(crate) fn refused(refusal: Refusal, end: impl FnOnce() -> End) -> Self {
        match refusal {
            Refusal::QueuePairInUse(qpn) => Self::QueuePairInUse { qpn },
            Refusal::TooManyConnections(most) => Self::TooManyConnections { most },
            // The lengths of private data were checked before.
            _ => Self::Ended(end()),
        }
    }
}

/// Checks the length of private data, which is limited by its message.
pub(crate) fn check_private_data(
    message: &'static str,
    data: &[u8],
    most: usize,
) -> Result<(), Error> {
    let length = data.len();
    if length <= most { Ok(()) } else { Err(Error::PrivateData { message, length, most }) }
}
