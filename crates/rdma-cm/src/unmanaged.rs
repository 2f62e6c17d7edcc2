//! Connections whose queue pairs the program creates and moves between their states itself.
//!
//! The types of the crate's root own their queue pairs, so a program cannot move one to a wrong state. This module is
//! for programs that must do this themselves, for example because their queue pairs were created by C code. The caller
//! moves its queue pair to RTR before it calls [`Id::accept`], and to RTS before it calls [`Id::establish`].
//!
//! Datagram services (SIDR) are supported here: the passive end answers a query with the number and the Q_Key of its
//! queue pair. So are [multicast groups](join).
//!
//! The module works with software devices. The connections of other devices pass through the kernel's rdma_cm. Of such a
//! device, the module has only datagram services, in the UDP port space, and groups. Their Q_Key is [`QKEY`].
//!
//! # Examples
//! A query for a datagram service, and its answer. One thread serves both ends.
//! ```
//! use std::time::Duration;
//!
//! use rdma_cm::{BindOptions, EventChannel};
//! use rdma_cm::unmanaged::{self, Answered, Event, PortSpace};
//!
//! rdma_soft::install();
//! let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
//! let port = unmanaged::bind(&channel, PortSpace::Udp, "127.0.0.1:0".parse()?, BindOptions::new())?;
//! let address = format!("127.0.0.1:{}", port.number()).parse()?;
//! let _listener = unmanaged::listen(&channel, &port)?;
//! let route = unmanaged::route(&channel, address)?;
//! let _query = unmanaged::query(&channel, PortSpace::Udp, &route, b"who?")?;
//!
//! let limit = Some(Duration::from_secs(10));
//! let answered = loop {
//!     match unmanaged::event(channel.next(limit)?.expect("an event")).1 {
//!         Event::Queried { id, private_data, .. } => {
//!             assert!(private_data.starts_with(b"who?"));
//!             id.answer(7.try_into()?, 0x1234_5678, b"")?;
//!         }
//!         Event::Answered(answered) => break answered,
//!         other => panic!("{other:?}"),
//!     }
//! };
//! assert!(matches!(answered, Answered { qkey: 0x1234_5678, .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use rdma_mem::{GidEntry, GidType, LinkLayer};
use rdma_proto::cm::wire::Reason;
use rdma_types::{AckTimeout, Qpn};

pub use rdma_proto::cm::wire::SidrStatus;
pub use rdma_proto::cm::{Address, PortSpace};

pub use crate::group::Group;
pub use crate::parameters::{Answered, Parameters, QKEY, Route};

use crate::active::Resolved;
use crate::channel::EventChannel;
use crate::engine::groups::group_of;
use crate::engine::path::{Ends, Request, gid_of, ip_of};
use crate::engine::{Handle, Reserved, managed};
use crate::error::{End, Error, check_private_data};
use crate::event::{self, IdToken};
use crate::happening::Happening;
use crate::listener::{Accepting, ConnectionRequest};
use crate::options::BindOptions;

/// The maximum length of the private data in a query.
pub const MAX_QUERY_DATA: usize = 180;
/// The maximum length of the private data in the answer to a query.
pub const MAX_ANSWER_DATA: usize = 136;

/// An event, with all that the peer's message contains.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer requests a connection to a listener.
    Requested {
        /// The new connection. Dropping it rejects the request.
        id: Id,
        /// The peer's parameters.
        parameters: Parameters,
        /// The addresses.
        route: Route,
        /// The peer's private data, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer accepted the request.
    Replied {
        /// The peer's parameters.
        parameters: Parameters,
        /// The peer's private data, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer is ready.
    Established {
        /// The peer's private data, padded with zeros.
        private_data: Vec<u8>,
    },
    /// A peer queries a datagram service.
    Queried {
        /// The query. Dropping it rejects the query.
        id: Id,
        /// The addresses.
        route: Route,
        /// The peer's private data, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The answer to a query of this process arrived.
    Answered(Answered),
    /// The process has joined a multicast group.
    Joined(Group),
    /// An address of [`EventChannel::start_resolving`] was resolved, or could not be. To connect to it, pass the event to
    /// [`Resolving::advance`](crate::Resolving::advance) instead.
    Resolved(Result<SocketAddr, Error>),
    /// The connection has ended, or was not established.
    Ended(End),
}

/// A listener, a connection, a query, or a membership in a multicast group. It ends when this is dropped.
#[doc(alias = "rdma_cm_id")]
#[derive(Debug)]
#[must_use = "dropping it ends the connection"]
pub struct Id(Handle);

/// A port that no other listener of the device can have. It is free when all its owners are dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    kind: PortKind,
}

#[derive(Debug)]
enum PortKind {
    Reserved(Reserved),
    /// The address and the ID of librdmacm, until it listens.
    Managed(SocketAddr, Mutex<Option<Handle>>),
}

impl Port {
    /// Returns the number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Changes the options. They apply to later owners and to later calls of [`listen`]. A port that is shared stays
    /// shared.
    ///
    /// # Examples
    /// ```
    /// use rdma_cm::unmanaged::{self, PortSpace};
    /// use rdma_cm::{BindOptions, EventChannel};
    ///
    /// rdma_soft::install();
    /// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
    /// let bind = |to: &str, options| {
    ///     unmanaged::bind(&channel, PortSpace::Tcp, to.parse().unwrap(), options)
    /// };
    /// let mut first = bind("127.0.0.1:0", BindOptions::new())?;
    /// let shared = BindOptions::new().with_shared_port(true);
    /// let address = format!("127.0.0.1:{}", first.number());
    /// assert!(bind(&address, shared).is_err());
    /// first.set_options(shared);
    /// assert!(bind(&address, shared).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_options(&mut self, options: BindOptions) {
        match &mut self.kind {
            PortKind::Reserved(reserved) => reserved.set_options(options),
            PortKind::Managed(_, handle) => {
                let handle = handle.get_mut().unwrap_or_else(PoisonError::into_inner);
                handle.iter().for_each(|handle| handle.set_port_options(options));
            }
        }
    }
}

/// Returns the way to a listener, or to a multicast group. With the kernel's rdma_cm, this waits for at most 30 s, and
/// the listener is that of a datagram service.
///
/// # Errors
/// Same errors as [`EventChannel::resolve`]. [`Error::NoAddress`] if no port of the device has one.
#[doc(alias = "rdma_resolve_addr")]
pub fn route(channel: &EventChannel, to: SocketAddr) -> Result<Route, Error> {
    if channel.engine().is_managed() {
        return channel.engine().route_managed(to);
    }
    if to.ip().to_canonical().is_multicast() {
        return Ok(group(channel, to, None)?.route);
    }
    let resolved = channel.resolve(to)?;
    let context = channel.context();
    let no_address = || Error::NoAddress { device: context.device().name().to_owned() };
    let table = context.gid_table()?;
    let wanted = resolved.source().unwrap_or_else(|| gid_of(resolved.address().ip()));
    let is_v2 = |entry: &&GidEntry| entry.gid_type == GidType::ROCE_V2;
    let best = table.iter().filter(is_v2).find(|entry| entry.gid == wanted);
    let any = || table.iter().find(is_v2);
    let roce = || table.iter().find(|entry| entry.gid_type != GidType::IB);
    let (local, gid_type, port) = match best.or_else(any).or_else(roce) {
        Some(entry) => (Address::Gid(entry.gid), entry.gid_type, entry.port),
        None => {
            let port = context.query_port(1)?;
            if port.link_layer != LinkLayer::INFINIBAND {
                return Err(no_address());
            }
            (Address::Lid(port.lid), GidType::IB, 1)
        }
    };
    let mtu = context.query_port(port)?.active_mtu.ok_or_else(no_address)?;
    Ok(match resolved.source() {
        None => Route {
            local,
            remote: local,
            gid_type,
            mtu,
            traffic_class: 0,
            ack_timeout: AckTimeout::default(),
            source: SocketAddr::new(resolved.address().ip(), 0),
            destination: resolved.address(),
            is_outside: false,
        },
        Some(source) => Route {
            local: Address::Gid(source),
            remote: Address::Gid(gid_of(resolved.address().ip())),
            gid_type: GidType::ROCE_V2,
            mtu,
            traffic_class: 0,
            ack_timeout: AckTimeout::default(),
            source: SocketAddr::new(ip_of(source), 0),
            destination: resolved.address(),
            is_outside: true,
        },
    })
}

/// Reserves a port at an address of this host, like [`Listener::bind`](crate::Listener::bind), in a port space. Requests
/// are rejected until [`listen`].
///
/// # Errors
/// Same errors as [`Listener::bind`](crate::Listener::bind). [`Error::Managed`] if the kernel's rdma_cm connects the device,
/// and the port space is not that of datagram services.
#[doc(alias = "rdma_bind_addr")]
pub fn bind(
    channel: &EventChannel,
    space: PortSpace,
    to: SocketAddr,
    options: BindOptions,
) -> Result<Port, Error> {
    let engine = channel.engine();
    if space != PortSpace::Udp {
        engine.check_unmanaged()?;
    }
    let own = channel.own_address(to)?;
    if engine.is_managed() {
        let (handle, number) = engine.bind_managed(space, own, options)?;
        let kind = PortKind::Managed(own, Mutex::new(Some(handle)));
        return Ok(Port { number, kind });
    }
    let reserved = engine.reserve(space, own, options)?;
    Ok(Port { number: reserved.port, kind: PortKind::Reserved(reserved) })
}

/// Listens at a reserved port. The listener becomes an owner of the port, so it keeps the port if the [`Port`] is dropped.
/// With the kernel's rdma_cm, it becomes the only owner.
///
/// # Errors
/// [`Error::PortInUse`] if the port is [shared](BindOptions::with_shared_port) and has another owner, or if it has had a
/// listener. [`Error::System`] if the system refuses it.
#[doc(alias = "rdma_listen")]
pub fn listen(channel: &EventChannel, port: &Port) -> Result<Id, Error> {
    let (address, handle) = match &port.kind {
        PortKind::Reserved(reserved) => return Ok(Id(channel.engine().listen(reserved)?)),
        PortKind::Managed(address, handle) => (address, handle),
    };
    let mut bound = handle.lock().unwrap_or_else(PoisonError::into_inner);
    let device = || channel.context().device().name().to_owned();
    let in_use = || Error::PortInUse { port: port.number, device: device() };
    let handle = bound.as_ref().ok_or_else(in_use)?;
    handle.listen((address.ip(), port.number).into())?;
    bound.take().map(Id).ok_or_else(in_use)
}

/// Requests a connection, with at most 56 bytes of private data. An event follows.
///
/// # Errors
/// [`Error::PrivateData`] if there is too much of it. [`Error::System`] if the process cannot open another file.
/// [`Error::Managed`] if the kernel's rdma_cm connects the device.
#[doc(alias = "rdma_connect")]
pub fn connect(
    channel: &EventChannel,
    space: PortSpace,
    route: &Route,
    parameters: &Parameters,
    private_data: &[u8],
) -> Result<Id, Error> {
    check_private_data("REQ", private_data, Resolved::MAX_PRIVATE_DATA)?;
    channel.engine().check_unmanaged()?;
    let request = Request::to(space, route, Ends::Connection(*parameters), private_data);
    Ok(Id(channel.engine().connect(request)?))
}

/// Queries a datagram service, with at most 180 bytes of private data. An event follows. With the kernel's rdma_cm, this
/// waits for the route, for at most 30 s.
///
/// # Errors
/// Same errors as [`connect`]. [`Error::NoDatagrams`] if the device speaks iWARP.
pub fn query(
    channel: &EventChannel,
    space: PortSpace,
    route: &Route,
    private_data: &[u8],
) -> Result<Id, Error> {
    check_private_data("SIDR_REQ", private_data, MAX_QUERY_DATA)?;
    let engine = channel.engine();
    if space != PortSpace::Udp {
        engine.check_unmanaged()?;
    }
    if engine.is_managed() {
        engine.check_datagrams()?;
        let ends = (Some(route.source.ip()), route.destination);
        let request = managed::Request::query(route, private_data);
        return Ok(Id(engine.connect_managed(None, ends, request)?));
    }
    let request = Request::to(space, route, Ends::Query, private_data);
    Ok(Id(engine.connect(request)?))
}

/// Returns the group of an IP address on a software device. `source` selects the local address. The groups of software devices
/// need no membership of the process.
///
/// # Errors
/// [`Error::NotGroup`] if it is no multicast address. [`Error::NoAddress`] if the device has no address of its IP version.
/// [`Error::Managed`] for a device that the kernel's rdma_cm connects.
pub fn group(
    channel: &EventChannel,
    group: SocketAddr,
    source: Option<IpAddr>,
) -> Result<Group, Error> {
    channel.engine().check_unmanaged()?;
    let engine = channel.engine();
    let listens = |ip| engine.source_to(ip) == Some(gid_of(ip));
    group_of(channel.context(), group, source, listens)
}

/// Joins the multicast group of an IP address: [`Event::Joined`] follows, or [`Event::Ended`]. The process leaves the group
/// when the ID is dropped. The program attaches its queue pairs, whose Q_Key must be the group's. `source`
/// selects the local address. Without it, the kernel's rdma_cm chooses the port on InfiniBand by its routes.
///
/// # Errors
/// [`Error::NotGroup`] if it is no multicast address. [`Error::NoAddress`] if the device has no address of its IP version.
/// [`Error::System`] if the kernel's rdma_cm refuses a call.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use rdma_cm::EventChannel;
/// use rdma_cm::unmanaged::{self, Event, QKEY};
/// use rdma_qp::{AddressHandle, CompletionQueue, QueuePairType, prelude::*};
///
/// rdma_soft::install();
/// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
/// let _membership = unmanaged::join(&channel, "239.1.2.3".parse()?, None)?;
/// let event = channel.next(Some(Duration::from_secs(10)))?.expect("an event");
/// let (_, Event::Joined(group)) = unmanaged::event(event) else { panic!() };
///
/// let cq = CompletionQueue::create(channel.context(), 16)?;
/// let pd = channel.context().allocate_pd()?;
/// let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
/// let member = builder.qkey(group.qkey).build()?.activate()?;
/// member.attach_multicast(group.gid, group.lid)?;
/// // Datagrams to `Qpn::MULTICAST` with this handle and Q_Key reach all members.
/// let _to_group = AddressHandle::create(&pd, &group.address_vector(channel.context())?)?;
/// assert_eq!(group.qkey, QKEY);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_join_multicast")]
#[doc(alias = "rdma_leave_multicast")]
pub fn join(channel: &EventChannel, group: IpAddr, source: Option<IpAddr>) -> Result<Id, Error> {
    let engine = channel.engine();
    if engine.is_managed() {
        return Ok(Id(engine.join_managed(group, source)?));
    }
    let joined = self::group(channel, SocketAddr::new(group, 0), source)?;
    Ok(Id(engine.announce(Happening::Joined(Box::new(joined)))?))
}

/// Returns what an event contains, and the listener or connection that it is for.
#[must_use]
pub fn event(event: event::Event) -> (IdToken, Event) {
    let event::Event { id, happening, request } = event;
    let event = match (happening, request) {
        (Happening::Requested(requested), Some(handle)) => Event::Requested {
            id: Id(handle),
            parameters: requested.parameters,
            route: requested.route,
            private_data: requested.private_data,
        },
        (Happening::Queried(queried), Some(handle)) => Event::Queried {
            id: Id(handle),
            route: queried.route,
            private_data: queried.private_data,
        },
        (Happening::Replied(replying), _) => {
            Event::Replied { parameters: replying.parameters, private_data: replying.private_data }
        }
        (Happening::Established { private_data }, _) => Event::Established { private_data },
        (Happening::Answered(answered), _) => Event::Answered(*answered),
        (Happening::Joined(group), _) => Event::Joined(*group),
        (Happening::Resolved(result), _) => Event::Resolved(result.map(|way| way.to)),
        (Happening::Ended(end), _) => Event::Ended(end),
        (Happening::Requested(_) | Happening::Queried(_), None) => Event::Ended(End::PeerGone),
    };
    (id, event)
}

impl Id {
    /// Returns the identity that events have.
    #[must_use]
    pub const fn token(&self) -> IdToken {
        self.0.id()
    }

    /// Accepts a request, with at most 196 bytes of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::Ended`] if the peer has withdrawn the request.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, own: &Parameters, private_data: &[u8]) -> Result<(), Error> {
        check_private_data("REP", private_data, Accepting::MAX_PRIVATE_DATA)?;
        self.0.change(|peer, now| peer.accept(now, &own.answer(private_data)))
    }

    /// Confirms that this end is ready, after [`Event::Replied`].
    ///
    /// # Errors
    /// [`Error::Ended`] if the peer's end has ended meanwhile.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), Error> {
        self.0.establish()
    }

    /// Establishes an accepted connection whose queue pair received a packet before the peer's confirmation arrived. The
    /// event [`Event::Established`] follows.
    ///
    /// # Errors
    /// [`Error::Ended`] if the connection is not accepted, or is established.
    #[doc(alias = "rdma_notify")]
    pub fn communication_established(&self) -> Result<(), Error> {
        self.0.engine.communication_established(self.0.token)
    }

    /// Rejects a request or a reply, with at most 148 bytes of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::Ended`] if the peer's end has ended.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: Reason, private_data: &[u8]) -> Result<(), Error> {
        check_private_data("REJ", private_data, ConnectionRequest::MAX_PRIVATE_DATA)?;
        self.0.reject(reason, private_data)
    }

    /// Disconnects. Exactly one event [`Event::Ended`] follows, even if the peer has disconnected before. No other event
    /// follows it. A connection that is not established is rejected, and its event is queued at once.
    ///
    /// # Errors
    /// [`Error::Memory`] in a forked child.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        self.0.engine.disconnect(self.0.token, &[])
    }

    /// Answers a query with a queue pair, and at most 136 bytes of private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::Ended`] if the peer's process has exited.
    /// [`Error::QueueKey`] if the kernel's rdma_cm connects the device, and the Q_Key is not [`QKEY`].
    pub fn answer(&self, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<(), Error> {
        check_private_data("SIDR_REP", private_data, MAX_ANSWER_DATA)?;
        self.0.answer(qpn, qkey, private_data)
    }

    /// Refuses a query, with at most 136 bytes of private data.
    ///
    /// # Errors
    /// Same errors as [`answer`](Self::answer).
    pub fn refuse(&self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data("SIDR_REP", private_data, MAX_ANSWER_DATA)?;
        self.0.refuse(private_data)
    }
}
