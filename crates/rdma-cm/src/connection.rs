//! Established connections, and their ends.

use std::time::Duration;

use rdma_qp::QueuePair;

use crate::channel::end_of;
use crate::engine::Handle;
use crate::error::{End, Error, check_private_data};
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
        let event = self.handle.wait(limit)?;
        fail(&self.queue_pair);
        Ok(end_of(event.happening))
    }

    /// Disconnects, with at most 220 bytes of private data. The queue pair is moved to the error state, and its
    /// outstanding requests are flushed. An event follows, even if the peer has disconnected before.
    ///
    /// # Errors
    /// [`Error::PrivateData`] if there is too much of it. [`Error::Connect`] if the device does not change the queue
    /// pair. After an error, the connection is dropped.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self, private_data: &[u8]) -> Result<Disconnecting, Error> {
        check_private_data("DREQ", private_data, Self::MAX_PRIVATE_DATA)?;
        let Self { queue_pair, handle } = self;
        queue_pair.to_error()?;
        handle.engine.disconnect(handle.token, private_data)?;
        Ok(Disconnecting { queue_pair, handle })
    }
}

/// A connection that this end has disconnected. It may be dropped: the peer is notified anyway.
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
        let end = end_of(self.handle.wait(limit)?.happening);
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
