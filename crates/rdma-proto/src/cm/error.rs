//! Errors of calls to the communication manager.

use core::error::Error as StdError;
use core::fmt;

use rdma_types::Qpn;

use super::address::CommId;
use super::service::ServiceId;
use super::wire::TooLong;

/// The reason that a call to a [`Manager`](super::Manager) changed nothing.
///
/// # Examples
///
/// ```
/// use rdma_proto::cm::{CommId, Error};
///
/// let error = Error::State(CommId::new(0x7_0001));
/// assert_eq!(error.to_string(), "connection 0x00070001 is not in a state that allows this call");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No connection or query has this ID. It may have ended.
    Unknown(CommId),
    /// The connection is in another state. An event may have changed the state.
    State(CommId),
    /// Another listener has this service ID.
    ServiceInUse(ServiceId),
    /// The queue pair belongs to another connection, or to one in TimeWait. Wait for
    /// [`Event::Released`](super::Event::Released), or use another queue pair.
    QueuePairInUse(Qpn),
    /// The manager has as many connections and queries as its
    /// [`Settings`](super::Settings) allow.
    TooManyConnections(u32),
    /// Private data, or additional information, is too long.
    TooLong(TooLong),
}

rdma_types::debug_messages!(
    enum Error {
        Unknown(it),
        State(it),
        ServiceInUse(it),
        QueuePairInUse(it),
        TooManyConnections(it),
        TooLong(it),
    }
);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "no connection has the communication ID {id}"),
            Self::State(id) => write!(f, "connection {id} is not in a state that allows this call"),
            Self::ServiceInUse(service) => {
                write!(f, "service ID {service} has a listener already; use another port")
            }
            Self::QueuePairInUse(qpn) => {
                write!(
                    f,
                    "queue pair {qpn} belongs to another connection, or to one in TimeWait; wait \
                     for its event Released, or use another queue pair"
                )
            }
            Self::TooManyConnections(most) => {
                write!(f, "there are {most} connections already; raise `max_connections`")
            }
            Self::TooLong(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {}

impl From<TooLong> for Error {
    fn from(error: TooLong) -> Self {
        Self::TooLong(error)
    }
}
