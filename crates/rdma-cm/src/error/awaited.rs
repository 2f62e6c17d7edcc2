//! The events that `wait` methods receive.

use std::fmt;

/// An event that did not arrive within the limit of a `wait` method
/// ([`Error::TimedOut`](crate::Error::TimedOut)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Awaited {
    /// The resolved address ([`Resolving::wait`](crate::Resolving::wait)).
    Address,
    /// The listener's answer ([`Connecting::wait`](crate::Connecting::wait)).
    Answer,
    /// A request ([`Listener::incoming`](crate::Listener::incoming)).
    Request,
    /// The client's confirmation ([`Accepted::wait`](crate::Accepted::wait)).
    Confirmation,
    /// The end of a connection ([`Connection::wait`](crate::Connection::wait)).
    Disconnect,
    /// The answer to a disconnect ([`Disconnecting::wait`](crate::Disconnecting::wait)).
    DisconnectAnswer,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "the resolved address",
            Self::Answer => "the listener's answer",
            Self::Request => "a request",
            Self::Confirmation => "the client's confirmation",
            Self::Disconnect => "the peer's disconnect",
            Self::DisconnectAnswer => "the peer's answer to the disconnect",
        })
    }
}

impl Awaited {
    /// Returns what to do if the event does not arrive.
    pub(super) const fn cure(self) -> &'static str {
        match self {
            Self::Address => {
                "check `ip route get` and `ip neigh` for the address, or raise the limit"
            }
            Self::Answer => {
                "check that the server's program accepts or rejects the request, or raise the limit"
            }
            Self::Request => {
                "check that the client connects to this address and port, or wait again"
            }
            Self::Confirmation => {
                "check that the client's program waits for the answer and calls `establish`, or raise the limit"
            }
            Self::Disconnect => "check that the peer's program disconnects, or wait again",
            Self::DisconnectAnswer => {
                "check that the peer's program waits for events, or raise the limit"
            }
        }
    }
}
