//! The passive end: listeners, and requests for connections.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_proto::cm::PortSpace;
use rdma_proto::cm::wire::Reason;
use rdma_qp::{PreparedQueuePair, QueuePair};

use crate::channel::{EventChannel, end_of};
use crate::connection::Connection;
use crate::engine::Handle;
use crate::engine::managed::Half;
use crate::error::{Awaited, End, Error, check_private_data};
use crate::event::{Event, IdToken};
use crate::happening::{Happening, Requested};
use crate::options::BindOptions;
use crate::parameters::Parameters;
use crate::step::Step;

/// A port at which peers can request connections. Dropping it frees the port, and ends requests that the program has not
/// received.
///
/// The number of connections that are not established is limited. On software devices, 128 are of this host, and 128 of
/// other hosts at each local address. Further ones of this host wait, and those of other hosts are dropped. With the
/// kernel's rdma_cm, a listener has 128, and rejects further ones. A request needs no queue pair until the program
/// [prepares](ConnectionRequest::prepare) one.
#[doc(alias = "rdma_listen")]
#[derive(Debug)]
pub struct Listener {
    handle: Handle,
    address: SocketAddr,
}

impl Listener {
    /// Listens at an address of this host. The address 0.0.0.0 or `::` stands for all of them, and port 0 for a free
    /// port. 127.0.0.1 and `::1` are the same address, `localhost`. The listener rejects requests for other addresses.
    ///
    /// The kernel frees the port when the process exits. The listeners of a software device have different ports, whatever
    /// their IP addresses are. Other hosts reach them only at addresses at which the device of this process listens.
    ///
    /// # Errors
    /// [`Error::PortInUse`] if another listener has the port. [`Error::PortReserved`] if the kernel's rdma_cm connects the
    /// device, and reserves the port. [`Error::Resolve`] if the name has no address.
    /// [`Error::NotOwn`] if its addresses are not of this host. [`Error::OtherDevice`] or [`Error::NoRoute`] if the
    /// kernel's rdma_cm connects the device, and the address is not the device's. [`Error::System`] if the process cannot
    /// open another file.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(channel: &EventChannel, address: impl ToSocketAddrs) -> Result<Self, Error> {
        Self::bind_with(channel, address, BindOptions::new())
    }

    /// Listens with options, like [`bind`](Self::bind).
    ///
    /// # Errors
    /// Same errors as [`bind`](Self::bind).
    ///
    /// # Examples
    /// See [`BindOptions`].
    pub fn bind_with(
        channel: &EventChannel,
        address: impl ToSocketAddrs,
        options: BindOptions,
    ) -> Result<Self, Error> {
        let mut address = channel.own_address(address)?;
        if channel.engine().is_managed() {
            let (handle, port) = channel.engine().listen_managed(address, options)?;
            address.set_port(port);
            return Ok(Self { handle, address });
        }
        let reserved = channel.engine().reserve(PortSpace::Tcp, address, options)?;
        address.set_port(reserved.port);
        Ok(Self { handle: channel.engine().listen(&reserved)?, address })
    }

    /// Returns the identity that the listener's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns the address, with the port.
    #[doc(alias = "rdma_get_src_port")]
    #[must_use]
    pub const fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the request in an event of this listener.
    ///
    /// # Errors
    /// Returns the event if it is not a request to this listener.
    pub fn request(&self, event: Event) -> Result<ConnectionRequest, Event> {
        let Event { id, happening, request } = event;
        match (happening, request) {
            (Happening::Requested(requested), Some(handle)) if id == self.id() => {
                Ok(ConnectionRequest { handle, requested })
            }
            (happening, request) => Err(Event { id, happening, request }),
        }
    }

    /// Waits for the next request, for at most `limit`. Requests that arrive together are returned in any order.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after the limit, which leaves the listener unchanged. [`Error::Closed`] once the channel is
    /// closed. [`Error::Ended`] if the listener is at the address of a device that was removed.
    #[doc(alias = "rdma_get_request")]
    pub fn incoming(&self, limit: Duration) -> Result<ConnectionRequest, Error> {
        let event = self.handle.wait(Awaited::Request, limit)?;
        self.request(event).map_err(|event| end_of(event.happening).into())
    }
}

/// A peer's request for a connection. Dropping it rejects the request.
#[must_use = "dropping it rejects the request"]
pub struct ConnectionRequest {
    handle: Handle,
    requested: Box<Requested>,
}

impl std::fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { handle, requested } = self;
        let mut shown = f.debug_struct("ConnectionRequest");
        shown.field("handle", handle).field("endpoint", &requested.endpoint).finish_non_exhaustive()
    }
}

impl ConnectionRequest {
    /// The maximum length of the private data in a REJ.
    pub const MAX_PRIVATE_DATA: usize = 148;

    /// Returns the identity that the connection's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns the peer's address. The port is 0 if the peer has none. On one host, and with the kernel's rdma_cm, the
    /// peer chooses the address.
    #[doc(alias = "rdma_get_peer_addr")]
    #[must_use]
    pub const fn peer_address(&self) -> SocketAddr {
        self.requested.route.destination
    }

    /// Returns the peer's private data, of 56 bytes: padded with zeros. On iWARP, a C program may send up to 255 bytes.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.requested.private_data
    }

    /// Connects a queue pair to the peer's, through the states `INIT`, `RTR` and `RTS`. If the queue pair has no traffic
    /// class of its own, it sends with the one in the request.
    ///
    /// # Errors
    /// [`Error::Mtu`], [`Error::NotReliable`] or [`Error::Connect`] if the queue pair does not match the peer's, and
    /// [`Error::OtherQueuePair`] if it does not match the channel's device.
    /// [`Error::Ended`] if the peer has withdrawn the request, and the kernel's rdma_cm connects the device. After an error,
    /// the request is rejected, and the queue pair is destroyed.
    pub fn prepare(self, mut queue_pair: PreparedQueuePair) -> Result<Accepting, Error> {
        self.handle.engine.check_queue_pair(&queue_pair)?;
        if let Some((own, peer)) = self.requested.ends {
            queue_pair.set_stream_addresses(own, peer);
        }
        if queue_pair.traffic_class().is_none() {
            queue_pair.set_traffic_class(self.requested.route.traffic_class);
        }
        let (mtu, peer) = (queue_pair.endpoint().mtu(), self.requested.endpoint);
        // TCP has no MTU of a path.
        if mtu < peer.mtu() && !self.handle.engine.is_iwarp() {
            self.handle.reject(Reason::INVALID_MTU, &[])?;
            return Err(Error::Mtu { own: mtu, peer: peer.mtu() });
        }
        let own = Parameters::of(&queue_pair);
        Ok(Accepting {
            queue_pair: self.handle.connect(Half::new(queue_pair)?, &peer)?,
            handle: self.handle,
            own,
        })
    }

    /// Rejects the request, with at most 148 bytes of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it; the request is then rejected without private data.
    /// [`Error::Ended`] if the peer has withdrawn the request.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data("REJ", private_data, Self::MAX_PRIVATE_DATA)?;
        self.handle.reject(Reason::CONSUMER_DEFINED, private_data)
    }
}

/// A request with the queue pair that will be its end of the connection. Dropping it rejects the request.
#[derive(Debug)]
#[must_use = "dropping it rejects the request"]
pub struct Accepting {
    queue_pair: QueuePair,
    handle: Handle,
    own: Parameters,
}

impl Accepting {
    /// The maximum length of the private data in a REP.
    pub const MAX_PRIVATE_DATA: usize = 196;

    /// Returns the queue pair. Receives that are posted before [`accept`](Self::accept) are ready for the peer's first
    /// message.
    #[must_use]
    pub const fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Accepts the request, with at most 196 bytes of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::Ended`] if the peer has withdrawn the request. After
    /// an error, the queue pair is destroyed.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, private_data: &[u8]) -> Result<Accepted, Error> {
        check_private_data("REP", private_data, Self::MAX_PRIVATE_DATA)?;
        let Self { queue_pair, handle, own } = self;
        handle.accept(own, private_data)?;
        Ok(Accepted { queue_pair, handle })
    }
}

/// An accepted connection, until the peer is ready. Dropping it rejects the connection.
#[derive(Debug)]
#[must_use = "dropping it rejects the connection"]
pub struct Accepted {
    queue_pair: QueuePair,
    handle: Handle,
}

impl Accepted {
    /// Returns the identity that the connection's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns a file that becomes readable when the peer is ready, or when a thread must process messages. It must then
    /// pass the connection's event to [`advance`](Self::advance). The first call opens two files.
    ///
    /// # Errors
    /// [`Error::System`] if the process cannot open another file, or start a thread.
    pub fn file(&self) -> Result<Arc<OwnedFd>, Error> {
        self.handle.engine.file_of(self.handle.token, false)
    }

    /// Returns the queue pair. It can receive, but must not send before the connection is established, or on iWARP before
    /// it has received a message.
    #[must_use]
    pub const fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Processes an event.
    pub fn advance(self, event: Event) -> Step<Self, Connection> {
        match self.handle.take(event) {
            Err(event) => Step::Same(self, event),
            Ok(Happening::Established { .. }) => {
                Step::Next(Connection::new(self.queue_pair, self.handle))
            }
            Ok(other) => Step::Failed(end_of(other).into()),
        }
    }

    /// Waits until the peer is ready, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Ended`] if the peer rejected the connection or ended. [`Error::TimedOut`] after the limit. After an
    /// error, the connection is rejected, and the queue pair is destroyed.
    pub fn wait(self, limit: Duration) -> Result<Connection, Error> {
        let event = self.handle.wait(Awaited::Confirmation, limit)?;
        match self.advance(event) {
            Step::Next(connection) => Ok(connection),
            Step::Failed(error) => Err(error),
            Step::Same(..) => Err(End::PeerGone.into()),
        }
    }
}
