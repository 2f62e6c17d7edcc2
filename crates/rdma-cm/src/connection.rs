//! Established connections, and their ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_mem::Context;
use rdma_qp::QueuePair;

use crate::channel::end_of;
use crate::engine::Handle;
use crate::error::{Awaited, End, Error, check_private_data};
use crate::event::{Event, IdToken};
use crate::step::Step;

/// An established connection. Dropping it disconnects, and destroys the queue pair.
#[derive(Debug)]
#[must_use = "dropping it disconnects"]
pub struct Connection {
    queue_pair: QueuePair,
    handle: Handle,
}

impl Connection {
    /// The maximum length of the private data in a DREQ.
    pub const MAX_PRIVATE_DATA: usize = 220;

    pub(crate) const fn new(queue_pair: QueuePair, handle: Handle) -> Self {
        Self { queue_pair, handle }
    }

    /// Returns the identity that the connection's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns the queue pair.
    #[must_use]
    pub const fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Processes an event. If it ends the connection, the queue pair is moved to the error state.
    ///
    /// This never returns [`Step::Failed`].
    pub fn advance(self, event: Event) -> Step<Self, Ended> {
        match self.handle.take(event) {
            Err(event) => Step::Same(self, event),
            Ok(happening) => Step::Next(Ended::new(self.queue_pair, end_of(happening))),
        }
    }

    /// Waits until the peer disconnects or its process exits, for at most `limit`. Returns the reason, once. The queue
    /// pair is then moved to the error state.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after the limit, which leaves the connection unchanged. [`Error::Closed`] once the channel
    /// is closed.
    pub fn wait(&self, limit: Duration) -> Result<End, Error> {
        let event = self.handle.wait(Awaited::Disconnect, limit)?;
        fail(&self.queue_pair);
        Ok(end_of(event.happening))
    }

    /// Separates the connection from its queue pair. The program must move the queue pair to the error state, or destroy
    /// it, when the connection ends.
    #[must_use = "dropping the ID disconnects"]
    pub fn into_parts(self) -> (QueuePair, ConnectionId) {
        let Self { queue_pair, handle } = self;
        (queue_pair, ConnectionId { handle })
    }

    /// Disconnects, with at most 220 bytes of private data. The queue pair is moved to the error state, and its
    /// outstanding requests are flushed. An event follows, even if the peer has disconnected before.
    ///
    /// The kernel's rdma_cm sends no private data, so its peers receive zeros, or nothing.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::Connect`] if the device does not change the queue
    /// pair. After an error, the connection is dropped.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self, private_data: &[u8]) -> Result<Disconnecting, Error> {
        check_private_data("DREQ", private_data, Self::MAX_PRIVATE_DATA)?;
        let Self { queue_pair, handle } = self;
        if handle.engine.is_iwarp() {
            // The kernel closes the TCP connection, which it would otherwise reset.
            handle.engine.disconnect(handle.token, private_data)?;
            queue_pair.to_error()?;
        } else {
            queue_pair.to_error()?;
            handle.engine.disconnect(handle.token, private_data)?;
        }
        Ok(Disconnecting { queue_pair, handle })
    }
}

/// A connection without its queue pair, which belongs to the program or to another crate. Dropping it disconnects, but
/// leaves the queue pair unchanged.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_cm::{End, EventChannel, Listener};
/// use rdma_qp::{CompletionQueue, prelude::*};
///
/// rdma_soft::install();
/// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
/// let cq = CompletionQueue::create(channel.context(), 16)?;
/// let pd = channel.context().allocate_pd()?;
/// let new = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
/// let limit = Duration::from_secs(10);
/// let listener = Listener::bind(&channel, "localhost:0")?;
/// let connecting = channel.resolve(listener.local_address())?.connect(new()?, b"")?;
/// let accepted = listener.incoming(limit)?.prepare(new()?)?.accept(b"")?;
/// let (here, here_id) = connecting.wait(limit)?.establish()?.into_parts();
/// let (there, there_id) = accepted.wait(limit)?.into_parts();
///
/// drop(here); // the peer's requests fail from now on
/// here_id.disconnect(b"bye")?;
/// let End::Disconnected { private_data } = there_id.wait(limit)? else { panic!() };
/// assert_eq!(private_data[..3], *b"bye");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct ConnectionId {
    handle: Handle,
}

impl ConnectionId {
    /// Returns the device of the connection.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.handle.engine.context()
    }

    /// Returns the identity that the connection's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns the reason in an event that ends this connection.
    ///
    /// # Errors
    /// Returns the event if it belongs to another connection.
    pub fn end(&self, event: Event) -> Result<End, Event> {
        self.handle.take(event).map(end_of)
    }

    /// Waits until the peer disconnects or its process exits, for at most `limit`. Returns the reason, once.
    ///
    /// # Errors
    /// Same errors as [`Connection::wait`].
    pub fn wait(&self, limit: Duration) -> Result<End, Error> {
        Ok(end_of(self.handle.wait(Awaited::Disconnect, limit)?.happening))
    }

    /// Returns a file that becomes readable when the connection ends, or when a thread must process messages. When it is
    /// readable, call [`wait`](Self::wait) with a limit of zero. Do not read from the file. It stays readable after the
    /// end.
    ///
    /// For a connection of this host, it is the connection's socket. For others, the first call opens two files.
    ///
    /// # Errors
    /// [`Error::System`] if the process cannot open another file, or start a thread.
    pub fn file(&self) -> Result<Arc<OwnedFd>, Error> {
        self.handle.engine.file_of(self.handle.token, true)
    }

    /// Disconnects, with at most 220 bytes of private data. Does not wait for the peer.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it; the peer is then notified without private data.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data("DREQ", private_data, Connection::MAX_PRIVATE_DATA)?;
        self.handle.engine.disconnect(self.handle.token, private_data)
    }
}

/// A connection that this end has disconnected. It may be dropped: the peer is notified. A message that another host has
/// not received is repeated while the channel exists and a thread waits for its events. [`wait`](Self::wait) does this.
#[derive(Debug)]
pub struct Disconnecting {
    queue_pair: QueuePair,
    handle: Handle,
}

impl Disconnecting {
    /// Returns the identity that the connection's events have.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.handle.id()
    }

    /// Returns the queue pair, which is in the error state.
    #[must_use]
    pub const fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Processes an event. This never returns [`Step::Failed`].
    pub fn advance(self, event: Event) -> Step<Self, Ended> {
        match self.handle.take(event) {
            Err(event) => Step::Same(self, event),
            Ok(happening) => {
                Step::Next(Ended { queue_pair: self.queue_pair, end: end_of(happening) })
            }
        }
    }

    /// Waits until the peer has answered, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after the limit; the queue pair is then destroyed.
    pub fn wait(self, limit: Duration) -> Result<Ended, Error> {
        let event = self.handle.wait(Awaited::DisconnectAnswer, limit)?;
        let end = end_of(event.happening);
        Ok(Ended { queue_pair: self.queue_pair, end })
    }
}

/// A connection that has ended.
#[derive(Debug)]
pub struct Ended {
    queue_pair: QueuePair,
    end: End,
}

impl Ended {
    fn new(queue_pair: QueuePair, end: End) -> Self {
        fail(&queue_pair);
        Self { queue_pair, end }
    }

    /// Returns the queue pair, which is in the error state: its outstanding requests were flushed.
    #[must_use]
    pub const fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Returns the reason.
    #[must_use]
    pub const fn end(&self) -> &End {
        &self.end
    }
}

/// Moves the queue pair of an ended connection to the error state.
fn fail(queue_pair: &QueuePair) {
    if let Err(error) = queue_pair.to_error() {
        let qpn = queue_pair.qpn();
        tracing::warn!(%error, %qpn, "the queue pair of an ended connection could not be moved to the error state");
    }
}
