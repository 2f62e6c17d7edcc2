//! Events of a channel.

use std::fmt;
use std::sync::Arc;

use crate::engine::{Engine, Handle};
use crate::error::End;
use crate::happening::Happening;

/// The identity of a listener or connection. It is unique in its process, and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdToken(u64);

impl IdToken {
    pub(crate) const fn new(token: u64) -> Self {
        Self(token)
    }
}

/// An event of an [`EventChannel`](crate::EventChannel).
///
/// The event is an owned value. It does not have to be acknowledged, and can be kept or dropped at any time.
#[doc(alias = "rdma_cm_event")]
pub struct Event {
    pub(crate) id: IdToken,
    pub(crate) happening: Happening,
    /// The connection of a request. It is rejected if the event is dropped.
    pub(crate) request: Option<Handle>,
}

/// The kind of an [`Event`].
#[doc(alias = "rdma_cm_event_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// An address was resolved, or could not be (`RDMA_CM_EVENT_ADDR_RESOLVED`, `RDMA_CM_EVENT_ROUTE_RESOLVED`,
    /// `RDMA_CM_EVENT_ADDR_ERROR`, `RDMA_CM_EVENT_ROUTE_ERROR`). Pass the event to
    /// [`Resolving::advance`](crate::Resolving::advance).
    Resolved,
    /// A peer requests a connection to a listener (`RDMA_CM_EVENT_CONNECT_REQUEST`). Pass the event to
    /// [`Listener::request`](crate::Listener::request).
    ConnectRequest,
    /// The peer accepted the connection (`RDMA_CM_EVENT_CONNECT_RESPONSE`). Pass the event to
    /// [`Connecting::advance`](crate::Connecting::advance).
    ConnectResponse,
    /// The peer is ready (`RDMA_CM_EVENT_ESTABLISHED`). Pass the event to
    /// [`Accepted::advance`](crate::Accepted::advance).
    Established,
    /// The process has joined a multicast group (`RDMA_CM_EVENT_MULTICAST_JOIN`). Pass the event to
    /// [`unmanaged::event`](crate::unmanaged::event).
    Joined,
    /// The connection has ended, or was not established; see [`Event::end`].
    Ended,
}

impl Event {
    /// Creates the event of a channel.
    pub(crate) fn new(engine: &Arc<Engine>, (token, happening): (u64, Happening)) -> Self {
        let handle = |token| Handle { engine: Arc::clone(engine), token };
        let request = happening.requester().map(handle);
        Self { id: IdToken::new(token), happening, request }
    }

    /// Returns the listener of a [`ConnectRequest`](EventKind::ConnectRequest), and the connection of any other event.
    #[must_use]
    pub const fn id(&self) -> IdToken {
        self.id
    }

    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> EventKind {
        match self.happening {
            Happening::Requested(_) | Happening::Queried(_) => EventKind::ConnectRequest,
            Happening::Replied(_) | Happening::Answered(_) => EventKind::ConnectResponse,
            Happening::Established { .. } => EventKind::Established,
            Happening::Joined(_) => EventKind::Joined,
            Happening::Resolved(_) => EventKind::Resolved,
            Happening::Ended(_) => EventKind::Ended,
        }
    }

    /// Returns the private data of the peer's message, padded with zeros. It is empty if there is no message.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        match &self.happening {
            Happening::Requested(requested) => &requested.private_data,
            Happening::Replied(replying) => &replying.private_data,
            Happening::Queried(queried) => &queried.private_data,
            Happening::Answered(answered) => &answered.private_data,
            Happening::Established { private_data }
            | Happening::Ended(
                End::Rejected { private_data, .. } | End::Disconnected { private_data },
            ) => private_data,
            Happening::Joined(_) | Happening::Resolved(_) | Happening::Ended(_) => &[],
        }
    }

    /// Returns the reason of an [`Ended`](EventKind::Ended).
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        match &self.happening {
            Happening::Ended(end) => Some(end),
            _ => None,
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, .. } = self;
        f.debug_struct("Event")
            .field("id", id)
            .field("kind", &self.kind())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}
