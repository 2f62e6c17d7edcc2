//! Channels that detect that their peer is gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_connect::{ConnectError, Farewell};
use tracing::field::display;

use super::builder::ChannelBuilder;
use crate::channel::Channel;
use crate::rendezvous::builder::{ByAddress, Rendezvous, RendezvousBuilder};

impl<'a, C: ByAddress> ChannelBuilder<'a, C> {
    /// The time that the peer's machine may be silent before the peer counts as gone. Default: 10 seconds.
    ///
    /// A channel keeps the stream of its rendezvous, and every wait for an operation also watches the stream. The
    /// peer's end of the stream is closed when its process ends or its program drops the channel. Then pending
    /// completions are polled, and a wait for more fails with [`PeerGone`](crate::TransportError::PeerGone). That
    /// closes the channel, and the reason shows whether the peer disconnected or died. All this happens at once,
    /// whatever the limit is.
    ///
    /// A machine that loses power or its network closes no stream. It counts as gone after `limit`. During that time,
    /// TCP probes it four times (`SO_KEEPALIVE`, `TCP_USER_TIMEOUT`), but at most once per second, so the shortest
    /// limit is two seconds. The kernel answers the probes: a process that is stopped or gets no processor is not
    /// silent.
    ///
    /// A channel that spins checks the stream at most once per millisecond, and only after it has begun to yield the
    /// processor. A channel that sleeps wakes at once. Polls do not check the stream, nor do waits that are too short
    /// to yield. A program that sleeps [in its own event loop](crate::Scope::arm) also polls the
    /// [stream](crate::Scope::watched_stream). If the peer's process has forked and is then killed, its child keeps the
    /// stream open. The peer then counts as gone only when the child ends. The stream takes one file descriptor at each
    /// end; see [`watch_nothing`](Self::watch_nothing).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{ReceiveWorkRequest, TransportError, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let patient = pd.create_channel().watch(Duration::from_secs(60));
    /// let mut listener = patient.listen("127.0.0.1:0")?;
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

    /// Watches no stream: this channel does not detect that its peer is gone, except by an operation that fails after
    /// its retries. A receive then waits until its own time limit. If the peer does not watch either, both ends close
    /// the stream after the rendezvous, which saves one file descriptor at each end.
    pub fn watch_nothing(self) -> RendezvousBuilder<'a> {
        let mut builder = self.into_builder_of::<Rendezvous>();
        builder.rendezvous.watch = None;
        builder
    }
}

impl ChannelBuilder<'_> {
    /// Detects that the peer is gone, like [`watch`](Self::watch), through a stream that the program has created: TCP
    /// or a Unix socket. This has no effect on channels from [`connect`](Self::connect) and [`listen`](Self::listen),
    /// which watch the stream of their rendezvous. The peer's program must keep its end of the stream open for as long
    /// as its channel exists. Nothing is written to the stream, so the reason is always
    /// [`Died`](crate::CloseReason::Died).
    ///
    /// The peer counts as gone when its end of the stream is closed or shut down for writing. Bytes that pass through
    /// the stream, and a [shutdown](std::net::Shutdown::Write) of this end, have no effect. The program may keep a
    /// duplicate of the stream ([`try_clone`](std::net::TcpStream::try_clone)), and use one stream for several
    /// channels. On TCP, `SO_KEEPALIVE` and `TCP_USER_TIMEOUT` are set, which also affects duplicates.
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
    /// Closes the channel, and sends the peer a reason of at most 64 bytes, which the peer gets from
    /// [`disconnect_reason`](Self::disconnect_reason). This does not wait, so wait for the completion of important
    /// messages first. If neither end [watches](ChannelBuilder::watch_nothing), the channel has kept no stream, and no
    /// reason is sent.
    ///
    /// # Errors
    /// [`ConnectError::ReasonTooLong`], or [`ConnectError::Verbs`] if the provider refuses to destroy the queue pair.
    /// The channel is dropped in both cases.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{CloseReason, ReceiveWorkRequest, prelude::*};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
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

    /// The reason that the peer's program passed when it [disconnected](Self::disconnect_with); empty if it dropped its
    /// channel. `None` if this end [does not watch](ChannelBuilder::watch_nothing), or has not detected a disconnect.
    /// Also `None` if the peer is gone for another reason, which [`closed`](Self::closed) returns.
    #[must_use]
    pub fn disconnect_reason(&self) -> Option<Box<[u8]>> {
        Some(self.ledger.watch.as_ref()?.farewell()?.reason().into())
    }
}
