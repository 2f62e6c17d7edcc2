//! Negotiates additional connections, the next queue pair of a connection, and the end of a connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rdma_connect::{CloseReason, ConnectError, Farewell, MakeEnds, NoEnd, StreamAddresses};
use rdma_qp::{PreparedQueuePair, QueuePair, QueuePairBuilder, QueuePairEndpoint};
use tokio::time::timeout;
use tracing::{Instrument as _, Span};

use super::frame::Frame;
use super::maker::Maker;
use super::negotiation::{Negotiation, Reaction};
use super::shared::{Member, Shared};
use crate::connection::Connection;
use crate::driver::Driver;
use crate::ledger::Ledger;
use crate::ledger::entry::ConnectionEntry;
use crate::prepared::prepare;

/// Makes the next queue pair of a connection.
#[derive(Debug)]
struct Again {
    ledger: Arc<Ledger>,
    qp: QueuePairBuilder<'static>,
}

impl MakeEnds for Again {
    type Prepared = PreparedQueuePair;
    type Connected = QueuePair;

    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(PreparedQueuePair, QueuePairEndpoint), NoEnd> {
        let mut prepared = prepare(self.qp.clone(), &self.ledger).map_err(NoEnd::Failed)?;
        if let Some((own, peer)) = stream {
            prepared.set_stream_addresses(own, peer);
        }
        let endpoint = prepared.endpoint();
        Ok((prepared, endpoint))
    }

    fn device(&self) -> String {
        self.ledger.cq().context().device().name().to_owned()
    }

    fn connect(
        &self,
        prepared: PreparedQueuePair,
        peer: QueuePairEndpoint,
    ) -> Result<QueuePair, rdma_qp::Error> {
        prepared.handshake(peer)
    }
}

impl Connection {
    /// Ends the queue pair if it has not ended yet, and agrees with the peer on another one. The peer's program must
    /// make the same call. This value and all clones continue with a higher [`epoch`](Self::epoch), which is the same
    /// at both ends.
    ///
    /// No operation is repeated: outstanding operations fail, and the program has to repost its receives. A failed
    /// operation keeps its slot until it is awaited or dropped, so await or drop all operations first. An operation
    /// that waits for a slot may get one in the new queue pair. Messages that have [arrived for dropped
    /// receives](Self::take_unclaimed) are kept. The domain and all options stay the same. If the future is dropped
    /// early, the connection stays closed at both ends.
    ///
    /// # Errors
    /// [`ConnectError::NoControl`] if the connection was not made [by address](Driver::connect) with a peer of this
    /// crate; [`ConnectError::Timeout`] if the peer does not make the same call within the
    /// [`rendezvous_timeout`](crate::ConnectionOptions::rendezvous_timeout) of this end; [`ConnectError::Closed`] if
    /// the peer is gone: connect again; [`ConnectError::NumberTaken`] if another task is already reconnecting;
    /// [`ConnectError::Busy`] if the client is already making 64 queue pairs over this control connection, the most
    /// that the server remembers; [`ConnectError::Verbs`] if a queue pair cannot be destroyed, created, or connected;
    /// [`ConnectError::Io`] if the connection was closed, its port went down, or the completion queue failed in the
    /// meantime.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let options = rdma_async::ConnectionOptions::new(&pd);
    /// # let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    /// # let (client, server) = tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
    /// # let ((client, _), server) = (client?, server?);
    /// # let pool = rdma_mem::BufferPool::new(&pd);
    /// # let nowhere = pd.allocate_shared_region(8, rdma_mem::AccessFlags::new())?;
    /// // A mistake ends the queue pair, not the process at the other end.
    /// client.write(pool.allocate(8)?, nowhere.remote()).await.unwrap_err();
    /// let (at_client, at_server) = tokio::join!(client.reconnect(), server.reconnect());
    /// assert_eq!((at_client?, at_server?), (1, 1));
    /// let receive = server.receive(pool.allocate(8)?).post().await?;
    /// client.send(pool.allocate(8)?).await?;
    /// assert_eq!(receive.await?.length, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reconnect(&self) -> Result<u32, ConnectError> {
        let span = tracing::debug_span!("reconnect", qpn = %self.qpn());
        self.renegotiate().instrument(span).await
    }

    async fn renegotiate(&self) -> Result<u32, ConnectError> {
        let inner = self.inner();
        let member = inner.member().ok_or(ConnectError::NoControl)?;
        let (shared, number) = (&*member.shared, member.number);
        let mut negotiation = Negotiation::begin(shared, number, true)?;
        // Set before the queue pair ends. A close from now on resets the flag, so that `renew` fails.
        inner.look(ConnectionEntry::expect_renewal);
        // Another thread may already be destroying the queue pair. If the provider refuses that thread's call, this
        // loop tries again.
        while !inner.look(|entry| entry.is_gone()) {
            inner.ledger.close_if(inner.entry, CloseReason::Asked, |_| true)?;
            inner.until(|entry| (!entry.is_ending()).then_some(())).await;
        }
        let again = Again { ledger: Arc::clone(&inner.ledger), qp: member.qp.clone() };
        let negotiated =
            within(shared, "`reconnect`", negotiate(&mut negotiation, shared, again, &member.qp));
        let (epoch, qp) = negotiated.await?;
        if !inner.ledger.renew(inner.entry, qp, epoch) {
            let source = if inner.look(|entry| entry.has_lost_port()) {
                io::Error::new(io::ErrorKind::NetworkDown, "its port went down in the meantime")
            } else {
                let why = "it was closed in the meantime, or its completion queue has failed";
                io::Error::other(why)
            };
            return Err(ConnectError::Io { tried: "connecting again".to_owned(), source });
        }
        inner.check_driver();
        shared.enter(number, inner);
        negotiation.done(epoch);
        Ok(epoch)
    }

    /// Agrees with the peer on an additional connection, which has its own queue pair but shares the control connection
    /// of this one. The peer's program must make the same call with the same number, which must not be 0. Each end
    /// passes its own options, so domain, port and rights may differ from those of this connection. These are queue
    /// pair options, which by default give the peer no rights.
    ///
    /// The control connection lives until the last of its connections is dropped. When the other end is gone, all of
    /// them end. If the future is dropped early, no connection is made, or the new connection is closed at once.
    ///
    /// # Errors
    /// Same errors as [`reconnect`](Self::reconnect); [`ConnectError::NumberTaken`] if a connection has this number;
    /// [`ConnectError::Verbs`] with an error of [`Driver::prepare`].
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::AccessFlags;
    /// use rdma_qp::prelude::*;
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let options = rdma_async::ConnectionOptions::new(&pd);
    /// # let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    /// # let (client, server) = tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
    /// # let ((client, _), server) = (client?, server?);
    /// // A connection for counters. It gives its peer no other rights.
    /// const COUNTERS: u32 = 1;
    /// let own = context.allocate_pd()?;
    /// let may = own.create_qp().access(AccessFlags::new().with_remote_atomic());
    /// let (one, other) =
    ///     tokio::join!(client.connect_additional(COUNTERS, pd.create_qp()), server.connect_additional(COUNTERS, may));
    /// let (one, _other) = (one?, other?);
    /// let access = AccessFlags::new().with_local_write().with_remote_atomic();
    /// let counter = own.allocate_shared_region(8, access)?;
    /// assert_eq!(one.fetch_add(counter.remote(), 1).await?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn connect_additional(
        &self,
        number: u32,
        qp: QueuePairBuilder<'static>,
    ) -> Result<Self, ConnectError> {
        let span = tracing::debug_span!("connect_additional", qpn = %self.qpn(), number);
        self.negotiate_additional(number, qp).instrument(span).await
    }

    async fn negotiate_additional(
        &self,
        number: u32,
        qp: QueuePairBuilder<'static>,
    ) -> Result<Self, ConnectError> {
        let inner = self.inner();
        let member = inner.member().ok_or(ConnectError::NoControl)?;
        let shared = &member.shared;
        let mut negotiation = Negotiation::begin(shared, number, false)?;
        let driver = Driver(Arc::clone(&inner.driver));
        let maker = Maker { driver, qp: qp.clone() };
        let call = format!("`connect_additional` with number {number}");
        let negotiated = within(shared, &call, negotiate(&mut negotiation, shared, maker, &qp));
        let (epoch, further) = negotiated.await?;
        let (task, shared) = (Arc::clone(&member.task), Arc::clone(shared));
        further.inner().look(|entry| entry.epoch = epoch);
        further.inner().keep(Member { shared: Arc::clone(&shared), number, qp, task });
        shared.enter(number, further.inner());
        negotiation.done(epoch);
        Ok(further)
    }

    /// Ends the connection once all requests of the send queue have completed and the peer has closed its end. The peer
    /// is notified, and closes its end as soon as its own send queue has completed. A reliable connection therefore
    /// loses no message of either end, provided that the other end is alive and has posted receives for the messages.
    /// Other operations of the peer fail with [`CloseReason::Disconnected`].
    ///
    /// From now on, all other operations fail with [`CloseReason::Asked`]. After `limit`, the queue pair is destroyed
    /// in any case. If the connection has no control connection, or the peer is a channel, it ends when its own send
    /// queue has completed. If the future is dropped early, the connection accepts no further operations. It stays open
    /// until it is [closed](Self::close) or dropped, or the peer ends it.
    ///
    /// # Errors
    /// [`ConnectError::Timeout`] if the send queue did not complete in time, or the peer did not close its end;
    /// [`ConnectError::Io`] if a request of the send queue failed, or was outstanding when the connection ended, even
    /// before this call; also `Io` if another task has reconnected meanwhile; [`ConnectError::Verbs`] if the provider
    /// refuses to destroy the queue pair.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with time (`enable_time`).
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let options = rdma_async::ConnectionOptions::new(&pd);
    /// # let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    /// # let (client, server) = tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
    /// # let ((client, _), server) = (client?, server?);
    /// # let pool = rdma_mem::BufferPool::new(&pd);
    /// let last = server.receive(pool.allocate(8)?).post().await?;
    /// // The send is not awaited.
    /// drop(client.send(pool.allocate(8)?).post().await?);
    /// client.disconnect(Duration::from_secs(5)).await?;
    /// assert_eq!(last.await?.length, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn disconnect(&self, limit: Duration) -> Result<(), ConnectError> {
        self.disconnect_with(b"", limit).await
    }

    /// Ends the connection like [`disconnect`](Self::disconnect), and sends the peer's program a reason of at most 64
    /// bytes. At the peer, [`disconnect_reason`](Self::disconnect_reason) returns the reason.
    ///
    /// # Errors
    /// Same errors as [`disconnect`](Self::disconnect), and [`ConnectError::ReasonTooLong`], which leaves the
    /// connection unchanged.
    ///
    /// # Panics
    /// Same panics as [`disconnect`](Self::disconnect).
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// use rdma_async::CloseReason;
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let options = rdma_async::ConnectionOptions::new(&pd);
    /// # let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    /// # let (client, server) = tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
    /// # let ((client, _), server) = (client?, server?);
    /// let waits = server.receive_imm().post().await?;
    /// client.disconnect_with(b"maintenance", Duration::from_secs(5)).await?;
    /// assert!(waits.await.is_err());
    /// assert_eq!(server.closed(), Some(CloseReason::Disconnected));
    /// assert_eq!(server.disconnect_reason().as_deref(), Some(&b"maintenance"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_disconnect")]
    pub async fn disconnect_with(
        &self,
        reason: &[u8],
        limit: Duration,
    ) -> Result<(), ConnectError> {
        let farewell = Farewell::new(reason)?;
        let span = tracing::debug_span!("disconnect", qpn = %self.qpn());
        self.end_with(farewell, limit).instrument(span).await
    }

    async fn end_with(&self, farewell: Farewell, limit: Duration) -> Result<(), ConnectError> {
        // Panics here in a runtime without time, before anything has changed.
        drop(tokio::time::sleep(Duration::ZERO));
        let inner = self.inner();
        let epoch = inner.look(|entry| {
            entry.forbid_renewal();
            entry.epoch
        });
        inner.ledger.stop_if(inner.entry, CloseReason::Asked, |entry| entry.epoch == epoch);
        if let Some(member) = inner.member() {
            member.shared.leases.notify_all();
            member.send_farewell(epoch, farewell);
        }
        let end = async {
            let has_lost = inner.until(|entry| {
                let has_ended = entry.is_drained() || entry.is_gone();
                // Another task may have connected the next queue pair before this task noticed the end of this one.
                (has_ended || entry.epoch != epoch)
                    .then(|| entry.has_lost() || entry.epoch != epoch)
            });
            let has_lost = has_lost.await;
            let member = inner.member().filter(|member| member.shared.talks && !has_lost);
            if let Some(member) = member {
                member.finish(epoch).await;
            }
            has_lost
        };
        let ended = timeout(limit, end).await;
        inner.ledger.close_if(inner.entry, CloseReason::Asked, |entry| entry.epoch == epoch)?;
        match ended {
            Ok(false) => Ok(()),
            Ok(true) => {
                let why =
                    "some of the last requests did not arrive: see the errors of their operations";
                let (tried, source) = ("ending the connection".to_owned(), io::Error::other(why));
                Err(ConnectError::Io { tried, source })
            }
            Err(_) => {
                let awaited = "end of the peer's side, or of the last sends: check that its \
                    program is running and has posted receives";
                Err(ConnectError::Timeout { limit, awaited: awaited.to_owned() })
            }
        }
    }
}

impl Connection {
    /// Returns the reason with which the peer's program [disconnected](Self::disconnect_with), empty if it gave none.
    /// Returns `None` if the peer has not disconnected; [`closed`](Self::closed) then has this end's reason.
    #[must_use]
    pub fn disconnect_reason(&self) -> Option<Box<[u8]>> {
        let epoch = self.epoch();
        Some(self.inner().member()?.farewell(epoch)?.reason().into())
    }
}

/// Applies the control connection's time limit to the future.
async fn within<T>(
    shared: &Shared,
    call: &str,
    negotiation: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let limit = shared.limit;
    timeout(limit, negotiation).await.unwrap_or_else(|_| {
        let awaited = format!(
            "queue pair from the peer at {}: check that its program calls {call}, too",
            shared.address
        );
        Err(ConnectError::Timeout { limit, awaited })
    })
}

/// Agrees with the other end on a queue pair. Returns the connected queue pair with its epoch.
async fn negotiate<M>(
    negotiation: &mut Negotiation<'_>,
    shared: &Shared,
    maker: M,
    qp: &QueuePairBuilder<'static>,
) -> Result<(u32, M::Connected), ConnectError>
where
    M: MakeEnds<Prepared: Send, Connected: Send> + Send + Sync + 'static,
{
    let (maker, stream) = (Arc::new(maker), shared.stream);
    loop {
        let with = Arc::clone(&maker);
        if shared.is_client {
            let (prepared, endpoint) = blocking(move || made(with.prepare(stream))).await?;
            let epoch = negotiation.offer(endpoint);
            if let Reaction::Yes(peer) = negotiation.answered(epoch).await? {
                let with = Arc::clone(&maker);
                let end = blocking(move || Ok(with.connect(prepared, peer)?)).await?;
                // Connecting takes time, and the other end may have given up in the meantime.
                if !negotiation.is_withdrawn(epoch) {
                    negotiation.enter(epoch, qp);
                    return Ok((epoch, end));
                }
            }
        } else {
            let (epoch, peer) = negotiation.offered().await?;
            let connect = move || {
                let (prepared, endpoint) = made(with.prepare(stream))?;
                Ok((with.connect(prepared, peer)?, endpoint))
            };
            let (end, endpoint) = blocking(connect).await?;
            // The client may lend memory as soon as it receives the answer.
            negotiation.enter(epoch, qp);
            negotiation.send(epoch, &Frame::Answer(Box::new(endpoint)));
            if let Reaction::Yes(()) = negotiation.ready(epoch).await? {
                return Ok((epoch, end));
            }
        }
        // The other end has given up on this attempt, and may start again.
        negotiation.forget();
    }
}

fn made<T>(made: Result<T, NoEnd>) -> Result<T, ConnectError> {
    made.map_err(|error| match error {
        NoEnd::Failed(error) | NoEnd::Unfit(error, _) => error.into(),
        NoEnd::Full(why) => ConnectError::Busy(why.into()),
    })
}

/// Runs `work` on another thread, because calls to the device may take long.
///
/// # Errors
/// The errors of `work`, or [`ConnectError::Io`] if the runtime shuts down or `work` panics.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let span = Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(work)).await;
    done.unwrap_or_else(|error| {
        let (tried, source) = ("calling the device's driver".to_owned(), io::Error::other(error));
        Err(ConnectError::Io { tried, source })
    })
}
