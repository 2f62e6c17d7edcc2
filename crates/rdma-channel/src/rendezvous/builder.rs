//! Building channels that connect to an address.

use std::net::ToSocketAddrs;
use std::time::Duration;

use rdma_connect::ConnectError;
use rdma_mem::ProtectionDomain;

use super::address::resolve;
use super::client;
use super::listener::ChannelListener;
use crate::channel::Channel;
use crate::channel::builder::ChannelBuilder;
use crate::channel::options::{Options, RendezvousOptions};

/// Marks a [`RendezvousBuilder`], which creates a channel or a listener. It does not create a
/// [`PreparedChannel`](crate::PreparedChannel), because the options of the rendezvous would have no effect on one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rendezvous {}

/// The options of a channel and of its rendezvous: a [`ChannelBuilder`] on which at least one rendezvous option is set.
///
/// It has no `build`, because `build` performs no rendezvous:
/// ```compile_fail,E0599
/// # use rdma_channel::prelude::*;
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd.create_channel().user_bytes(b"in vain").build()?;
/// # Ok::<(), rdma_qp::Error>(())
/// ```
pub type RendezvousBuilder<'a> = ChannelBuilder<'a, Rendezvous>;

/// Marks the builders that can connect to an address, with or without options of the rendezvous.
#[allow(unnameable_types)] // this seals the trait
pub trait ByAddress {}

impl ByAddress for Channel {}
impl ByAddress for Rendezvous {}

impl Channel {
    /// Connects to the [listener](crate::ChannelListener) at this address, with the default options. Like
    /// [`connect`](ChannelBuilder::connect) of the builder, except that the server's user bytes are dropped.
    ///
    /// # Errors
    /// Same errors as [`ChannelBuilder::connect`].
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
    /// The bytes to send to the other end, at most 1,024. Through rdma_cm, a client sends at most 52, and a server 192.
    /// The server's program [reads](crate::Incoming::user_bytes) a client's bytes before it accepts the client. A
    /// listener's [`accept`](ChannelListener::accept) answers with the listener's own bytes. Default: none.
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
    /// let (_channel, greeting) = builder.connect(address)?;
    /// assert_eq!(*greeting, *b"from the server");
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

    /// The time limit of the rendezvous. For a client, it covers all of [`connect`](Self::connect) except the name
    /// lookup. For a listener, it applies to each message that the listener awaits from a client. Default: 10 seconds.
    /// [`Duration::MAX`] means no limit.
    pub fn rendezvous_timeout(self, timeout: Duration) -> RendezvousBuilder<'a> {
        let mut builder = self.into_builder_of::<Rendezvous>();
        builder.rendezvous.timeout = timeout;
        builder
    }

    /// Connects to the [listener](ChannelListener) at this address. Returns the channel, and the other end's
    /// [`user_bytes`](Self::user_bytes).
    ///
    /// When this returns, both ends can send. If the name has several addresses, they are tried in order until one
    /// accepts the connection. Each gets an equal share of the remaining time. The time limit is
    /// [`rendezvous_timeout`](Self::rendezvous_timeout), which does not include the name lookup.
    ///
    /// # Errors
    /// | | |
    /// |---|---|
    /// | [`NobodyListens`](ConnectError::NobodyListens), [`Io`](ConnectError::Io) | no connection to any of the addresses was possible |
    /// | [`Rejected`](ConnectError::Rejected) | the server rejected this client, or their queue pairs do not match; the error contains the reason |
    /// | [`Busy`](ConnectError::Busy) | the server is full, or has no queue pair for this client: try again later |
    /// | [`Timeout`](ConnectError::Timeout) | the time limit expired |
    /// | [`Closed`](ConnectError::Closed) | the server ended during the rendezvous |
    /// | [`Foreign`](ConnectError::Foreign), [`Version`](ConnectError::Version), [`Garbled`](ConnectError::Garbled) | the program at this address uses another protocol or version |
    /// | [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) | the name has no address |
    /// | [`UserBytesTooLong`](ConnectError::UserBytesTooLong) | there are more than 1,024 user bytes |
    /// | [`Verbs`](ConnectError::Verbs) | an error of [`build`](Self::build) or [`handshake`](crate::PreparedChannel::handshake) |
    #[doc(alias("rdma_cm", "rdma_connect"))]
    pub fn connect(self, addr: impl ToSocketAddrs) -> Result<(Channel, Box<[u8]>), ConnectError> {
        let (options, rendezvous) = self.into_options()?;
        client::connect(&options, &rendezvous, resolve(addr)?)
    }

    /// Listens for clients at the first usable address, and turns each into a channel with these options. For port 0,
    /// the kernel chooses a port.
    ///
    /// # Errors
    /// - [`Io`](ConnectError::Io) for the first address, if none is usable;
    /// - [`Resolve`](ConnectError::Resolve), [`NoAddress`](ConnectError::NoAddress) and
    ///   [`UserBytesTooLong`](ConnectError::UserBytesTooLong), like [`connect`](Self::connect);
    /// - [`Verbs`](ConnectError::Verbs) if no channel can be created with these options.
    ///
    /// # Examples
    /// See [`ChannelListener`] and [`Incoming`](crate::Incoming).
    #[doc(alias("rdma_cm", "rdma_listen"))]
    pub fn listen(self, addr: impl ToSocketAddrs) -> Result<ChannelListener, ConnectError> {
        let (options, rendezvous) = self.into_options()?;
        ChannelListener::bind(options, rendezvous, &resolve(addr)?)
    }

    /// Returns the options for channels that watch the stream of their rendezvous.
    fn into_options(self) -> Result<(Options, RendezvousOptions), ConnectError> {
        ConnectError::check_user_bytes(&self.rendezvous.user_bytes)?;
        Ok((Options { watch: None, ..self.options }, self.rendezvous))
    }
}
