//! The active end: the one that requests the connection.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdma_mem::{Context, Device, Gid};
use rdma_qp::{PreparedQueuePair, QueuePair};

use crate::channel::end_of;
use crate::connection::Connection;
use crate::engine::managed::{self, Half};
use crate::engine::path::{Request, ip_of};
use crate::engine::{Engine, Handle};
use crate::error::{Awaited, End, Error, check_private_data};
use crate::event::{Event, IdToken};
use crate::happening::{Happening, Replying, Way};
use crate::step::Step;

/// An address that is being resolved. Dropping it ends this.
#[doc(alias = "rdma_cm_id")]
#[derive(Debug)]
#[must_use = "dropping it ends the resolution"]
pub struct Resolving {
    handle: Handle,
}

impl Resolving {
    pub(crate) const fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Returns the identity that the event has.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns a file that becomes readable when the address is resolved, or when a thread must process messages. It must
    /// then pass the event to [`advance`](Self::advance). The first call opens two files.
    ///
    /// # Errors
    /// [`Error::System`] if the process cannot open another file, or start a thread.
    pub fn file(&self) -> Result<Arc<OwnedFd>, Error> {
        self.handle.engine.file_of(self.handle.token, false)
    }

    /// Processes an event. [`Step::Failed`] has the errors of [`wait`](Self::wait).
    pub fn advance(self, event: Event) -> Step<Self, Resolved> {
        match self.handle.take(event) {
            Err(event) => Step::Same(self, event),
            Ok(Happening::Resolved(result)) => match *result {
                Ok(way) => Step::Next(self.resolved(way)),
                Err(error) => Step::Failed(error),
            },
            Ok(other) => Step::Failed(end_of(other).into()),
        }
    }

    /// Waits until the address is resolved, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::NoRoute`] or [`Error::OtherDevice`] if the device does not reach the address. [`End::Unanswered`] if no
    /// host answers for it, and [`End::DeviceRemoved`] if the device was removed. [`Error::TimedOut`] after the limit.
    /// [`Error::Closed`] if the channel is closed while this waits.
    pub fn wait(self, limit: Duration) -> Result<Resolved, Error> {
        let event = self.handle.wait(Awaited::Address, limit)?;
        match self.advance(event) {
            Step::Next(resolved) => Ok(resolved),
            Step::Failed(error) => Err(error),
            Step::Same(..) => Err(End::PeerGone.into()),
        }
    }

    fn resolved(self, way: Way) -> Resolved {
        let engine = Arc::clone(&self.handle.engine);
        Resolved::new(&engine, Some(self.handle), way)
    }
}

/// The address of a listener, to which a queue pair can connect.
#[doc(alias = "rdma_cm_id")]
#[derive(Clone)]
pub struct Resolved {
    engine: Arc<Engine>,
    address: SocketAddr,
    port: u8,
    /// The local address, if the listener is on another host.
    source: Option<Gid>,
    /// The result of the kernel's rdma_cm. The first connection uses its ID.
    reached: Option<Arc<Address>>,
}

/// An address that the kernel's rdma_cm has resolved.
struct Address {
    /// The source address from which the device reaches it, if the kernel does not choose this one.
    source: Option<IpAddr>,
    /// The ID, until a connection has it.
    id: Mutex<Option<Handle>>,
}

impl Resolved {
    /// The maximum length of the private data in a REQ.
    pub const MAX_PRIVATE_DATA: usize = 56;

    /// Creates the result of a resolution, with the kernel's ID if there is one.
    pub(crate) fn new(engine: &Arc<Engine>, id: Option<Handle>, way: Way) -> Self {
        let engine = Arc::clone(engine);
        let Way { to: address, port, source, chosen } = way;
        let id = Mutex::new(id);
        let reached = engine.is_managed().then(|| Arc::new(Address { source: chosen, id }));
        Self { engine, address, port, source, reached }
    }

    /// Returns the address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the local address, if the listener is on another host.
    pub(crate) const fn source(&self) -> Option<Gid> {
        self.source
    }

    /// Returns the opened device that reaches the address. The queue pair is created on it.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.engine.context()
    }

    /// Returns the device that reaches the address.
    ///
    /// # Examples
    /// See [`port`](Self::port).
    #[must_use]
    pub fn device(&self) -> &Device {
        self.context().device()
    }

    /// Returns the number of the device's port that leads to the address, from 1. The kernel's rdma_cm moves the queue
    /// pair to this port. Its attributes are those of the connection, for example the largest MTU.
    ///
    /// # Examples
    /// ```
    /// use rdma_cm::EventChannel;
    ///
    /// rdma_soft::install();
    /// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
    /// let resolved = channel.resolve("localhost:7471")?;
    /// assert_eq!((resolved.device().name(), resolved.port()), ("soft0", 1));
    /// let port = resolved.context().query_port(resolved.port())?;
    /// assert!(port.active_mtu.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "port_num")]
    #[must_use]
    pub const fn port(&self) -> u8 {
        self.port
    }

    /// Requests a connection, with at most 56 bytes of private data. An event follows: the listener's answer, or
    /// [`End::Rejected`] if the port has no listener.
    ///
    /// The request contains the queue pair's [`traffic_class`](rdma_qp::QueuePairBuilder::traffic_class) and
    /// [`ack_timeout`](rdma_qp::QueuePairBuilder::ack_timeout), which the listener's end can use, too.
    ///
    /// On iWARP, this end must send the first message, which needs a receive that the listener's end has posted before.
    /// A thread of its own makes the TCP connection, so this does not wait for it.
    ///
    /// With the kernel's rdma_cm, this waits for a route, for at most 30 s. The first queue pair without a traffic class
    /// uses the route that was resolved.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::NotConnected`] for a queue pair of type UD, and
    /// [`Error::NoAddress`] for one on a port without an address. [`Error::NotReliable`] for one of type UC on a device
    /// that the kernel's rdma_cm connects. [`Error::OtherQueuePair`] for one on another device.
    /// [`Error::QueuePairInUse`] and [`Error::TooManyConnections`] if the listener is on another host.
    /// [`Error::Closed`] if the channel is closed while this waits. [`Error::System`] if the process cannot open another
    /// file. After an error, the queue pair is destroyed.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        mut queue_pair: PreparedQueuePair,
        private_data: &[u8],
    ) -> Result<Connecting, Error> {
        check_private_data("REQ", private_data, Self::MAX_PRIVATE_DATA)?;
        self.engine.check_queue_pair(&queue_pair)?;
        if let Some(reached) = &self.reached {
            let Address { source, id } = &**reached;
            let resolved = id.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut request = managed::Request::new(&queue_pair, private_data)?;
            let queue_pair = Half::of_request(queue_pair, &mut request)?;
            let handle = self.engine.connect_managed(resolved, (*source, self.address), request)?;
            return Ok(Connecting { queue_pair, handle });
        }
        if let Some(source) = self.source {
            queue_pair.set_stream_addresses(ip_of(source), self.address.ip());
        }
        let device = self.context().device().name();
        let request = Request::new(device, &queue_pair, self.address, self.source, private_data)?;
        let queue_pair = Half::Prepared(Box::new(queue_pair));
        Ok(Connecting { queue_pair, handle: self.engine.connect(request)? })
    }
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A requested connection. Dropping it cancels the request, and does not wait for the peer.
///
/// The queue pair of a dropped request is destroyed. On iWARP, the kernel keeps it until the peer has answered, or the
/// kernel's time limit has passed. It is in the error state then.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Connecting {
    queue_pair: Half,
    handle: Handle,
}

impl Connecting {
    /// Returns the identity that the connection's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns a file that becomes readable when the answer arrives, or when a thread must process messages. That
    /// thread calls [`next_of`](crate::EventChannel::next_of) for this [`id`](Self::id) with a limit of zero. If there
    /// is an event, it passes it to [`advance`](Self::advance). Then stop polling this file, which stays readable. An
    /// established connection has another one ([`ConnectionId::file`](crate::ConnectionId::file)).
    ///
    /// The first call opens two files. A program with many requests had better poll the file of the channel, and call
    /// [`EventChannel::next`](crate::EventChannel::next).
    ///
    /// # Errors
    /// [`Error::System`] if the process cannot open another file, or start a thread.
    pub fn file(&self) -> Result<Arc<OwnedFd>, Error> {
        self.handle.engine.file_of(self.handle.token, false)
    }

    /// Processes an event. If it is the listener's answer, the queue pair is moved to RTS.
    pub fn advance(self, event: Event) -> Step<Self, Replied> {
        match self.handle.take(event) {
            Err(event) => Step::Same(self, event),
            Ok(Happening::Replied(replying)) => match self.replied(*replying) {
                Ok(replied) => Step::Next(replied),
                Err(error) => Step::Failed(error),
            },
            Ok(other) => Step::Failed(end_of(other).into()),
        }
    }

    /// Waits for the listener's answer, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Ended`] if the listener rejected the connection or ended. [`Error::Connect`] if the queue pair could
    /// not be connected. [`Error::TimedOut`] after the limit. After an error, the request is cancelled, and the queue
    /// pair is destroyed.
    pub fn wait(self, limit: Duration) -> Result<Replied, Error> {
        let event = self.handle.wait(Awaited::Answer, limit)?;
        match self.advance(event) {
            Step::Next(replied) => Ok(replied),
            Step::Failed(error) => Err(error),
            Step::Same(..) => Err(End::PeerGone.into()),
        }
    }

    fn replied(self, replying: Replying) -> Result<Replied, Error> {
        let Replying { endpoint, private_data, .. } = replying;
        let queue_pair = self.handle.connect(self.queue_pair, &endpoint)?;
        Ok(Replied { queue_pair, handle: self.handle, private_data })
    }
}

/// A connection that the listener has accepted. Dropping it rejects the connection.
#[derive(Debug)]
#[must_use = "dropping it rejects the connection"]
pub struct Replied {
    queue_pair: QueuePair,
    handle: Handle,
    private_data: Vec<u8>,
}

impl Replied {
    /// Returns the listener's private data, padded with zeros to 196 bytes. On iWARP, up to 255 bytes can arrive.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the queue pair. Receives that are posted before [`establish`](Self::establish) are ready for the
    /// listener's first message.
    #[must_use]
    pub const fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Establishes the connection. The listener may send from then on.
    ///
    /// # Errors
    /// [`Error::Ended`] if the listener's end has ended meanwhile. The queue pair is then destroyed.
    #[doc(alias = "rdma_establish")]
    pub fn establish(self) -> Result<Connection, Error> {
        self.handle.establish()?;
        Ok(Connection::new(self.queue_pair, self.handle))
    }
}
