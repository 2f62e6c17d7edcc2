//! Channels that notice when their peer is gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_connect::{ConnectError, Farewell};
use tracing::field::display;

use super::builder::ChannelBuilder;
use crate::channel::Channel;
use crate::rendezvous::builder::{ByAddress, Rendezvous, RendezvousBuilder};

impl<'a, C: ByAddress> ChannelBuilder<'a, C> {
    /// Notices a peer that is gone: the stream of the rendezvous is kept as long as the channel, and whatever
    /// waits for an operation looks at it, too. When the peer's end of it is closed, since the peer's process has
    /// ended or has dropped the channel, what has completed is taken, and a wait for more ends with
    /// [`PeerGone`](crate::TransportError::PeerGone), which closes the channel and has as its reason whether the peer
    /// has disconnected or died. Default: no stream is kept.
    ///
    /// A machine without power or network stays silent; it counts as gone after `limit`: TCP asks it four times in
    /// that time (`SO_KEEPALIVE`, `TCP_USER_TIMEOUT`), but not more than once per second, so that the limit is two
    /// seconds at least.
    ///
    /// If one end watches, both keep the stream, each with one file more. A channel that spins looks once per
    /// millisecond at most, after it has begun to yield the processor; one that sleeps wakes at once. A program
    /// that sleeps [by itself](crate::Scope::arm) is not told.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{ReceiveWorkRequest, TransportError, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let watching = pd.create_channel().watch(Duration::from_secs(10));
    /// let mut listener = watching.listen("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// // The client's process ends.
    /// let client = std::thread::spawn({
    ///     let pd = pd.clone();
    ///     move || pd.create_channel().connect(address).map(drop)
    /// });
    ///
    /// let mut channel = listener.accept()?;
    /// client.join().unwrap()?;
    /// let gone = channel.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
    /// assert!(matches!(gone, TransportError::PeerGone { .. }));
    /// # Ok::<(), rdma_channel::ConnectError>(())
    /// ```
    #[doc(alias("TCP_USER_TIMEOUT", "SO_KEEPALIVE", "POLLRDHUP"))]
    pub fn watch(self, limit: Duration) -> RendezvousBuilder<'a> {
        let mut builder = self.into_builder_of::<Rendezvous>();
        builder.rendezvous.watch = Some(limit);
        builder
    }
}

impl ChannelBuilder<'_> {
    /// Notices a peer that is gone, as [`watch`](Self::watch), by a stream to it that the program has made, of TCP
    /// or a Unix socket. The peer keeps its end of the stream as long as it keeps its channel.
    /// Nothing is written to such a stream, so that its end counts as [`Died`](crate::CloseReason::Died).
    ///
    /// Only the end of what the peer sends is looked for: bytes that pass through the stream, and a
    /// [shutdown](std::net::Shutdown::Write) of this end, change nothing. The program may have a duplicate of the
    /// stream ([`try_clone`](std::net::TcpStream::try_clone)), and give one stream to several channels. On TCP
    /// `SO_KEEPALIVE` and `TCP_USER_TIMEOUT` are set, which hold for duplicates, too.
    ///
    /// # Examples
    /// ```
    /// use std::{os::unix::net::UnixStream, time::Duration};
    /// use rdma_channel::{ReceiveWorkRequest, TransportError, exchange, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let limit = Duration::from_secs(10);
    /// let (here, there) = UnixStream::pair()?;
    /// # let peer = std::thread::spawn({
    /// #     let pd = pd.clone();
    /// #     move || {
    /// #         let prepared = pd.create_channel().build().unwrap();
    /// #         let theirs = exchange(&there, &prepared.endpoint(), limit).unwrap();
    /// #         prepared.handshake(theirs).unwrap();
    /// #     }
    /// # });
    ///
    /// let builder = pd.create_channel().watch_stream(here.try_clone()?, limit);
    /// let prepared = builder.build()?;
    /// let theirs = exchange(&here, &prepared.endpoint(), limit)?;
    /// let mut channel = prepared.handshake(theirs)?;
    /// // The peer's process ends, and its end of the stream is closed.
    /// # peer.join().unwrap();
    /// let gone = channel.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
    /// assert!(matches!(gone, TransportError::PeerGone { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_stream(mut self, stream: impl Into<OwnedFd>, limit: Duration) -> Self {
        self.options.watch = Some((Arc::new(stream.into()), limit));
        self
    }
}

impl Channel {
    /// Closes the channel, and gives the peer's program a reason of at most 64 bytes, which its
    /// [`disconnect_reason`](Self::disconnect_reason) returns. It waits for nothing: what is to arrive has completed
    /// before. A channel that keeps no stream of a rendezvous, since neither end [watches](ChannelBuilder::watch), sends
    /// no reason.
    ///
    /// # Errors
    /// [`ConnectError::ReasonTooLong`], and [`ConnectError::Verbs`] if the provider refuses to destroy the queue pair.
    /// The channel is dropped in each case.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{CloseReason, ReceiveWorkRequest, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut listener = pd.create_channel().watch(Duration::from_secs(10)).listen("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn({
    ///     let pd = pd.clone();
    ///     move || pd.create_channel().connect(address)?.0.disconnect_with(b"no more work")
    /// });
    ///
    /// let mut channel = listener.accept()?;
    /// client.join().unwrap()?;
    /// channel.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
    /// assert_eq!(channel.closed(), Some(CloseReason::Disconnected));
    /// assert_eq!(channel.disconnect_reason().as_deref(), Some(&b"no more work"[..]));
    /// # Ok::<(), rdma_channel::ConnectError>(())
    /// ```
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect_with(mut self, reason: &[u8]) -> Result<(), ConnectError> {
        let farewell = Farewell::new(reason)?;
        let qpn = self.qpn().map(display);
        let _span = tracing::debug_span!("disconnect", qpn).entered();
        if let Some(watch) = &self.ledger.watch {
            watch.end_with(farewell);
        }
        Ok(self.ledger.close()?)
    }

    /// The reason with which the peer's program has [disconnected](Self::disconnect_with), empty if it has dropped its
    /// channel. `None` if this end does not [watch](ChannelBuilder::watch), has not noticed the end yet, or the peer has
    /// gone otherwise, as [`closed`](Self::closed) says.
    #[must_use]
    pub fn disconnect_reason(&self) -> Option<Box<[u8]>> {
        Some(self.ledger.watch.as_ref()?.farewell()?.reason().into())
    }
}
