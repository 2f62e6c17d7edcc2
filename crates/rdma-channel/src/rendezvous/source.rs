//! The clients of a listener, by the kind of their rendezvous.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[cfg(not(feature = "cm"))]
use rdma_connect::MakeEnds;
#[cfg(feature = "cm")]
use rdma_connect::cm::{CmClients, MakeCmEnds};
use rdma_connect::{ConnectError, Until};

use super::clients::Listening;

/// Creates this end's queue pair for each client.
#[cfg(feature = "cm")]
pub(crate) trait Maker: MakeCmEnds {}
#[cfg(feature = "cm")]
impl<M: MakeCmEnds> Maker for M {}

/// Creates this end's queue pair for each client.
#[cfg(not(feature = "cm"))]
pub(crate) trait Maker: MakeEnds {}
#[cfg(not(feature = "cm"))]
impl<M: MakeEnds> Maker for M {}

/// The clients of a listener.
pub(crate) enum Source<M: Maker> {
    Tcp(Listening<M>),
    #[cfg(feature = "cm")]
    Cm(CmClients<M>),
}

/// Evaluates an expression for either kind of clients.
macro_rules! either {
    ($source:expr, $clients:ident => $value:expr) => {
        match $source {
            Source::Tcp($clients) => $value,
            #[cfg(feature = "cm")]
            Source::Cm($clients) => $value,
        }
    };
}

impl<M: Maker> Source<M> {
    pub(crate) fn maker(&self) -> &M {
        either!(self, clients => clients.maker())
    }

    /// Returns the address of the listener.
    pub(crate) fn address(&self) -> SocketAddr {
        either!(self, clients => clients.address())
    }

    pub(crate) fn refused(&self) -> u64 {
        match self {
            Self::Tcp(clients) => clients.refused,
            #[cfg(feature = "cm")]
            Self::Cm(clients) => clients.refused(),
        }
    }

    pub(crate) fn dropped_half_open(&self) -> u64 {
        either!(self, clients => clients.dropped_half_open())
    }

    pub(crate) fn last_refused(&self) -> Option<&str> {
        either!(self, clients => clients.last_refused())
    }

    /// Counts a refused client.
    pub(crate) fn refuse(&mut self, why: String) {
        either!(self, clients => clients.refuse(why));
    }

    pub(crate) fn take_failure(&mut self) -> Option<ConnectError> {
        either!(self, clients => clients.take_failure())
    }

    /// Returns the time until a client's limit expires, or clients can be accepted again.
    pub(crate) fn next_end(&self, now: Instant) -> Duration {
        either!(self, clients => clients.next_end(now))
    }

    /// Returns the error of a wait without a client.
    pub(crate) fn timed_out(&self, limit: Duration) -> ConnectError {
        let address = self.address();
        let awaited = match self.last_refused() {
            None => format!("client at {address}: check that one connects to this address"),
            Some(last) => format!("valid client at {address}; the last refused client: {last}"),
        };
        ConnectError::Timeout { limit, awaited }
    }
}

impl<M: Maker> Source<M> {
    /// Starts or stops polling the socket, depending on whether clients can be accepted now.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the kernel refuses the change.
    pub(crate) fn update_taking(&mut self) -> Result<(), ConnectError> {
        match self {
            Self::Tcp(clients) => clients.update_taking(),
            #[cfg(feature = "cm")]
            Self::Cm(_) => Ok(()),
        }
    }

    /// Handles the files of TCP with these keys, and the clients whose time limit has expired.
    pub(crate) fn serve_ready(&mut self, ready: &[u64], until: Until) {
        match self {
            Self::Tcp(clients) => clients.serve_ready(ready, until),
            #[cfg(feature = "cm")]
            Self::Cm(_) => {}
        }
    }

    /// Stops accepting clients for a while, because the same error would recur at once.
    pub(crate) fn pause(&mut self, now: Instant) {
        match self {
            Self::Tcp(clients) => clients.pause(now),
            #[cfg(feature = "cm")]
            Self::Cm(_) => {}
        }
    }

    /// Accepts clients again.
    pub(crate) fn resume(&mut self) {
        match self {
            Self::Tcp(clients) => clients.resume(),
            #[cfg(feature = "cm")]
            Self::Cm(_) => {}
        }
    }
}

impl<M: Maker> fmt::Debug for Source<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(self, clients => clients.fmt(f))
    }
}
