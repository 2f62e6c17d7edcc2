//! Channels by an address.

use std::net::ToSocketAddrs;
use std::time::Duration;

use rdma_connect::ConnectError;
use rdma_mem::ProtectionDomain;

use super::address::resolve;
use super::client;
use super::listener::ChannelListener;
use crate::channel::Channel;
use crate::channel::builder::ChannelBuilder;

/// What a [`RendezvousBuilder`] makes: a channel or a listener, but no
/// [`PreparedChannel`](crate::PreparedChannel), for which options of the rendezvous would be in vain.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rendezvous {}

/// The options of a channel, and those of its rendezvous: a [`ChannelBuilder`] that was given one of the latter.
///
/// It has no `build`, which makes no rendezvous:
/// ```compile_fail,E0599
/// # use rdma_channel::prelude::*;
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd.create_channel().user_bytes(b"in vain").build()?;
/// # Ok::<(), rdma_qp::Error>(())
/// ```
pub type RendezvousBuilder<'a> = ChannelBuilder<'a, Rendezvous>;

/// What builders that connect by an address make: with options of the rendezvous or without.
#[allow(unnameable_types)] // that is how it is sealed
pub trait ByAddress {}

impl ByAddress for Channel {}
impl ByAddress for Rendezvous {}

impl Channel {
    /// Connects to the [listener](crate::ChannelListener) at this address, with the default options; as
    /// [`connect`](ChannelBuilder::connect) of the builder, whose user bytes of the server are dropped.
    ///
    /// # Errors
    /// Those of [`ChannelBuilder::connect`].
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{Channel, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let server = std::thread::spawn(move || listener.accept());
    ///
    /// let channel = Channel::connect(address, &pd)?;
    /// # assert_eq!(server.join().unwrap()?.peer().map(|peer| peer.peer_qpn), channel.qpn());
    /// # Ok::<(), rdma_channel::ConnectError>(())
    /// ```
    #[doc(alias("rdma_cm", "rdma_connect"))]
    pub fn connect(addr: impl ToSocketAddrs, pd: &ProtectionDomain) -> Result<Self, ConnectError> {
        Ok(Self::builder().pd(pd).connect(addr)?.0)
    }
}

impl<'a, C: ByAddress> ChannelBuilder<'a, C> {
    /// Bytes for the other end, at most 1,024: of a client, what the server's program
    /// [sees](crate::Incoming::user_bytes) before it accepts; of a listener, what [`accept`](ChannelListener::accept)
    /// answers. Default: none.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{ConnectError, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let builder = pd.create_channel().user_bytes(b"from the server");
    /// let mut listener = builder.listen("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let server = std::thread::spawn(move || listener.accept());
    ///
    /// let builder = pd.create_channel().user_bytes(b"from the client");
    /// let (_channel, told) = builder.connect(address)?;
    /// assert_eq!(*told, *b"from the server");
    /// # server.join().unwrap()?;
    ///
    /// let refused = pd.create_channel().user_bytes(&[7; 1025]).connect(address);
    /// assert!(matches!(refused, Err(ConnectError::UserBytesTooLong { length: 1025, most: 1024 })));
    /// # Ok::<(), ConnectError>(())
    /// ```
    pub fn user_bytes(self, user_bytes: &[u8]) -> RendezvousBuilder<'a> {
        let mut builder = self.into_builder_of::<Rendezvous>();
        builder.rendezvous.user_bytes = user_bytes.into();
        builder
    }

    /// How long the rendezvous may take: of a client all of [`connect`](Self::connect) but looking up the name, of a
    /// listener what each client does for its part. Default: 10 seconds. [`Duration::MAX`] is no limit.
    pub fn rendezvous_timeout(self, timeout: Duration) -> RendezvousBuilder<'a> {
        let mut builder = self.into_builder_of::<Rendezvous>();
        builder.rendezvous.timeout = timeout;
        builder
    }

    /// Connects to the [listener](ChannelListener) at this address, and returns what its program says, the
    /// [`user_bytes`](Self::user_bytes) of the other end.
    ///
    /// Both ends can send when it has returned. If there are several addresses, each is tried in order until one takes
    /// the connection; none has more of the time than its share. The time is that of
    /// [`rendezvous_timeout`](Self::rendezvous_timeout), and looking up a name is not part of it.
    ///
    /// # Errors
    /// | | |
    /// |---|---|
    /// | [`NobodyListens`](ConnectError::NobodyListens), [`Io`](ConnectError::Io) | there is no connection to any of the addresses |
    /// | [`Rejected`](ConnectError::Rejected) | the server does not want this client, or its queue pair does not fit, with the reason |
    /// | [`Busy`](ConnectError::Busy) | the server has as many clients as there can be, or no queue pair for this one: try again later |
    /// | [`Timeout`](ConnectError::Timeout) | it took too long |
    /// | [`Closed`](ConnectError::Closed) | the server ended meanwhile |
    /// | [`Foreign`](ConnectError::Foreign), [`Version`](ConnectError::Version), [`Garbled`](ConnectError::Garbled) | what listens there speaks something else |
    /// | [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) | the name has no address |
    /// | [`UserBytesTooLong`](ConnectError::UserBytesTooLong) | there are more than 1,024 user bytes |
    /// | [`Verbs`](ConnectError::Verbs) | those of [`build`](Self::build) and [`handshake`](crate::PreparedChannel::handshake) |
    #[doc(alias("rdma_cm", "rdma_connect"))]
    pub fn connect(self, addr: impl ToSocketAddrs) -> Result<(Channel, Box<[u8]>), ConnectError> {
        ConnectError::check_user_bytes(&self.rendezvous.user_bytes)?;
        client::connect(&self.options, &self.rendezvous, resolve(addr)?)
    }

    /// Listens at this address for clients, each of which becomes a channel with these options. Port 0 has the kernel
    /// choose one. If there are several addresses, it is the first that can be listened at.
    ///
    /// # Errors
    /// [`Io`](ConnectError::Io), of the first address; [`Resolve`](ConnectError::Resolve),
    /// [`NoAddress`](ConnectError::NoAddress) and [`UserBytesTooLong`](ConnectError::UserBytesTooLong) as for
    /// [`connect`](Self::connect); [`Verbs`](ConnectError::Verbs) if no channel can be made with these options.
    ///
    /// # Examples
    /// See [`ChannelListener`] and [`Incoming`](crate::Incoming).
    #[doc(alias("rdma_cm", "rdma_listen"))]
    pub fn listen(self, addr: impl ToSocketAddrs) -> Result<ChannelListener, ConnectError> {
        ConnectError::check_user_bytes(&self.rendezvous.user_bytes)?;
        ChannelListener::bind(self.options, self.rendezvous, &resolve(addr)?)
    }
}
