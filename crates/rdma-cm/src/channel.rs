//! The channel on which events arrive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use rdma_mem::{Context, LinkLayer};
use rdma_proto::Time;
use rdma_proto::cm::{Counters, Error as Refusal, PortSpace};

use crate::active::{Resolved, Resolving};
use crate::engine::managed::RESOLVED_WITHIN;
use crate::engine::path::{gid_of, ip_of, is_of_interface};
use crate::engine::peer::Peer;
use crate::engine::{Engine, Handle};
use crate::error::{Awaited, End, Error};
use crate::event::{Event, IdToken};
use crate::happening::{Happening, Way};

/// The port of a software device, which has one.
const ONLY_PORT: u8 = 1;

/// The source of the events of listeners and connections, and the device that they use.
///
/// Clones are cheap, and are the same channel. All methods can be called from several threads.
///
/// Messages of its connections are processed while a thread waits in [`next`](Self::next) or in a `wait` method. So a
/// program must wait, or poll the channel's [file](AsFd), while it has connections. Otherwise its peers receive no
/// answers, and their requests fail after about a minute. The channel has threads of its own in two cases only. If the
/// program polls the [files](crate::Connecting::file) of more than 32 connections, one thread processes messages. Calls
/// in which the kernel waits for an iWARP peer have a thread each.
///
/// A forked child cannot use the channel and its connections: calls return [`Error::Memory`]. Dropping them in the
/// child does nothing. But a peer learns that the parent has exited only once the child has exited, or executed a
/// program. A port is also in use until then. The child must not open a channel or bind a port if another thread
/// was doing so during the fork. It could wait for that thread.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_cm::EventChannel;
///
/// rdma_soft::install();
/// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
/// // Port 9 has no listener, so the answer is a rejection.
/// use rdma_qp::{CompletionQueue, prelude::*};
/// let cq = CompletionQueue::create(channel.context(), 16)?;
/// let pd = channel.context().allocate_pd()?;
/// let queue_pair = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
/// let connecting = channel.resolve("127.0.0.1:9")?.connect(queue_pair, b"")?;
/// let event = channel.next(Some(Duration::from_secs(10)))?.expect("an event");
/// assert_eq!(event.id(), connecting.id());
/// let end = event.end().unwrap().to_string();
/// assert!(end.starts_with("the peer rejected the connection: no service has this ID (8); check"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    engine: Arc<Engine>,
}

impl EventChannel {
    /// Opens a channel for connections of this device. If the device is one of the system's libibverbs, the kernel's
    /// rdma_cm connects it.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device cannot be queried. [`Error::System`] if the process cannot open another file.
    /// [`Error::Library`] and [`Error::NoKernel`] if the device is the system's, and librdmacm or the kernel's rdma_cm
    /// cannot be used.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn open(context: &Context) -> Result<Self, Error> {
        Ok(Self { engine: Engine::open(context)? })
    }

    /// Returns the channel that all callers of this function in the process share for this device. Opens it if no caller
    /// has it, or if it was closed. Each caller receives the events of its own connections with
    /// [`next_of`](Self::next_of) and `wait`.
    ///
    /// # Errors
    /// Same errors as [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let channel = rdma_cm::EventChannel::shared(&context)?;
    /// let address = channel.resolve("localhost:7471")?.address();
    /// # assert_eq!(address.port(), 7471);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared(context: &Context) -> Result<Self, Error> {
        Ok(Self { engine: Engine::shared(context)? })
    }

    /// Returns the opened device. Queue pairs for connections of this channel are created on it.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.engine.context()
    }

    /// Resolves the address of a listener, such as `"localhost:7471"` or `("10.0.0.1", 7471)`. Uses the first address
    /// of the name that belongs to this host, or otherwise the first one that the device reaches on another host. Waits
    /// for the name's resolution.
    ///
    /// With the kernel's rdma_cm, uses the first address that the device reaches, and waits for at most 30 s.
    ///
    /// # Errors
    /// [`Error::Resolve`] if the name has no address. [`Error::NotThisHost`], [`Error::NoRoute`] or
    /// [`Error::OtherDevice`] if the device does not reach it. [`Error::Closed`] if the channel is closed while this
    /// waits. [`Error::System`] if the system cannot wait.
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn resolve(&self, address: impl ToSocketAddrs) -> Result<Resolved, Error> {
        let all = self.named(address)?;
        if !self.engine.is_managed() {
            return Ok(Resolved::new(&self.engine, None, self.way(&all)?));
        }
        let handle = self.engine.reach(PortSpace::Tcp, &all, true)?;
        let way = handle.reached(RESOLVED_WITHIN)?;
        Ok(Resolved::new(&self.engine, Some(handle), way))
    }

    /// Begins to resolve the address of a listener, like [`resolve`](Self::resolve), but does not wait for the kernel. The
    /// event [`Resolved`](crate::EventKind::Resolved) follows. A host name is resolved before this returns.
    ///
    /// # Errors
    /// [`Error::Resolve`] if the name has no address. With a software device, also [`Error::NotThisHost`] or
    /// [`Error::NoRoute`] if the device does not reach it.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_cm::{EventChannel, EventKind, Step};
    ///
    /// rdma_soft::install();
    /// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
    /// let resolving = channel.start_resolving("127.0.0.1:7471")?;
    /// let event = channel.next(Some(Duration::from_secs(10)))?.expect("an event");
    /// assert_eq!((event.id(), event.kind()), (resolving.id(), EventKind::Resolved));
    /// let Step::Next(resolved) = resolving.advance(event) else { panic!() };
    /// assert_eq!(resolved.address().port(), 7471);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn start_resolving(&self, address: impl ToSocketAddrs) -> Result<Resolving, Error> {
        let all = self.named(address)?;
        let handle = if self.engine.is_managed() {
            self.engine.reach(PortSpace::Tcp, &all, false)?
        } else {
            let way = self.way(&all)?;
            self.engine.announce(Happening::Resolved(Box::new(Ok(way))))?
        };
        Ok(Resolving::new(handle))
    }

    /// Returns the addresses of a name, which are one or more.
    fn named(&self, address: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, Error> {
        self.engine.check_process()?;
        let all = addresses(address)?;
        if all.is_empty() { Err(self.not_reached(&all)) } else { Ok(all) }
    }

    /// Returns the way to the first of these addresses that a software device reaches.
    fn way(&self, all: &[SocketAddr]) -> Result<Way, Error> {
        if let Some(mut own) = all.iter().copied().find(|address| self.is_own(address.ip())) {
            match own.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
            return Ok(Way { to: own, port: ONLY_PORT, source: None, chosen: None });
        }
        let reached =
            all.iter().find_map(|address| Some((address, self.engine.source_to(address.ip())?)));
        match reached {
            Some((&to, source)) => {
                Ok(Way { to, port: ONLY_PORT, source: Some(source), chosen: None })
            }
            None => Err(self.not_reached(all)),
        }
    }

    /// Returns the next event. Waits for at most `limit`, or without a limit. Returns `None` if no event arrives
    /// within the limit.
    ///
    /// If another thread waits for the same event in a `wait` method, only one of the two calls returns it.
    ///
    /// # Errors
    /// [`Error::Closed`] once the channel is [closed](Self::close) and its events were read. [`Error::System`] if the
    /// system cannot wait.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn next(&self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        self.next_of(|_| true, limit)
    }

    /// Returns the next event of the listeners and connections that `wants` returns true for, like
    /// [`next`](Self::next). Other events stay queued. So several parts of a program can share a channel. `wants` must
    /// use neither the channel nor its connections, because their functions would wait for this one.
    ///
    /// # Errors
    /// Same errors as [`next`](Self::next).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_cm::{EventChannel, Listener};
    ///
    /// rdma_soft::install();
    /// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
    /// let listener = Listener::bind(&channel, "localhost:0")?;
    /// let none = channel.next_of(|id| id == listener.id(), Some(Duration::ZERO))?;
    /// assert!(none.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_of(
        &self,
        wants: impl Fn(IdToken) -> bool,
        limit: Option<Duration>,
    ) -> Result<Option<Event>, Error> {
        let next = self.engine.next(|token| wants(IdToken::new(token)), limit)?;
        Ok(next.map(|next| Event::new(&self.engine, next)))
    }

    /// Returns the counters of the messages from and to other hosts. In a forked child, all are 0.
    ///
    /// # Examples
    /// ```
    /// rdma_soft::Builder::new("cm0").listen("127.5.6.9").install()?;
    /// let channel = rdma_cm::EventChannel::open(&rdma_mem::open_device("cm0")?)?;
    /// assert_eq!(channel.counters().received, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// Closes the channel. Threads that wait for an event return [`Error::Closed`]. Later waits return the events that
    /// have arrived, and otherwise this error at once. Established connections stay usable, but their ends are no
    /// longer reported.
    #[doc(alias = "rdma_destroy_event_channel")]
    pub fn close(&self) {
        self.engine.close();
    }

    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the first address of a name that belongs to this host.
    pub(crate) fn own_address(&self, address: impl ToSocketAddrs) -> Result<SocketAddr, Error> {
        self.engine.check_process()?;
        let all = addresses(address)?;
        let own = all
            .iter()
            .copied()
            .find(|address| self.is_own(address.ip()) || address.ip().is_loopback());
        own.ok_or_else(|| match all.first() {
            Some(first) => Error::NotOwn { address: first.ip() },
            None => self.not_reached(&all),
        })
    }

    /// Returns the reason that none of a name's addresses is reached.
    fn not_reached(&self, all: &[SocketAddr]) -> Error {
        let device = self.context().device().name().to_owned();
        match all.first().map(SocketAddr::ip) {
            None => Error::Resolve(io::Error::from(io::ErrorKind::NotFound)),
            Some(address) if self.engine.reaches_others() => Error::NoRoute { address, device },
            Some(address) => {
                let port = self.context().query_port(ONLY_PORT);
                let link_layer = port.map_or(LinkLayer::ETHERNET, |port| port.link_layer);
                Error::NotThisHost { address, device, link_layer }
            }
        }
    }

    /// Returns true if an address leads to this host: through an interface, or as a GID of the device. Addresses of the
    /// loopback interface do, except if the device reaches them as those of other devices. The interfaces belong to no
    /// simulated network.
    fn is_own(&self, ip: IpAddr) -> bool {
        let is_reached = || {
            let source = self.engine.source_to(ip);
            source.is_some_and(|source| ip_of(source).is_loopback())
        };
        ip.is_unspecified()
            || !self.engine.is_simulated() && is_of_interface(ip)
            || self.engine.has_gid(gid_of(ip))
            || ip.is_loopback() && !is_reached()
    }
}

/// Returns the addresses of a name.
fn addresses(address: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, Error> {
    let all = address.to_socket_addrs().map_err(Error::Resolve)?;
    let canonical = |mut address: SocketAddr| {
        address.set_ip(address.ip().to_canonical());
        address
    };
    Ok(all.map(canonical).collect())
}

/// Returns the channel's file, which is readable while [`next`](EventChannel::next) has an event or work to do. When it
/// is readable, call `next` with a limit of zero until it returns `None`.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("context", self.context()).finish_non_exhaustive()
    }
}

impl Handle {
    pub(crate) const fn id(&self) -> IdToken {
        IdToken::new(self.token)
    }

    /// Returns what happened if an event is this connection's, and the event otherwise.
    pub(crate) fn take(&self, event: Event) -> Result<Happening, Event> {
        if event.id == self.id() { Ok(event.happening) } else { Err(event) }
    }

    /// Changes this connection. If it has ended, returns the reason.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut Peer, Time) -> Result<(), Refusal>,
    ) -> Result<(), Error> {
        self.engine.change(self.token, change)
    }

    /// Waits for the next event of this connection, which the error names.
    pub(crate) fn wait(&self, awaited: Awaited, limit: Duration) -> Result<Event, Error> {
        let next = self.engine.next(|token| token == self.token, Some(limit))?;
        let next = next.ok_or(Error::TimedOut { awaited, limit })?;
        Ok(Event::new(&self.engine, next))
    }
}

/// Returns the reason in an event that a connection does not expect in its state.
pub(crate) fn end_of(happening: Happening) -> End {
    match happening {
        Happening::Ended(end) => end,
        _ => End::PeerGone,
    }
}
