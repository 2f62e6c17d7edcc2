//! A client that waits for the program to accept or reject it.

use std::net::SocketAddr;
use std::sync::Arc;

use rdma_connect::{Candidate, ConnectError, Greeting, stream_addresses};

use super::listener::Served;
use super::shared::Shared;
use super::socket::ClientSocket;
use super::stream::keep;
use crate::connection::Connection;

/// A client of a [`Listener`](crate::Listener) that waits for the program to accept or reject it.
///
/// The client's queue pair is already connected to a queue pair of this server. Dropping this value rejects the client.
#[must_use = "dropping it rejects the client"]
#[derive(Debug)]
pub struct Incoming {
    pub(super) client: Candidate<ClientSocket, Connection>,
    pub(super) listener: Arc<Served>,
}

impl Incoming {
    /// Returns the address from which the client connected.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.client.address
    }

    /// Returns the client's [`user_bytes`](crate::ConnectionOptions::user_bytes), or an empty slice if it sent none.
    /// The client is not authenticated.
    #[must_use]
    pub fn user_bytes(&self) -> &[u8] {
        &self.client.greeting.user_bytes
    }

    /// Returns the connection, which is not the program's before it accepts the client.
    pub(crate) const fn connection(&self) -> &Connection {
        &self.client.end
    }

    /// Accepts the client, without waiting. Its [`connect`](crate::Driver::connect) returns these bytes, at most 1,024.
    /// Both ends can send immediately.
    ///
    /// # Errors
    /// [`ConnectError::UserBytesTooLong`], which rejects the client; [`ConnectError::Closed`] if the client is known to
    /// be gone; [`ConnectError::Garbled`] if the client sent bytes before its turn; [`ConnectError::Io`] if the runtime
    /// cannot watch the client's stream.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, user_bytes: &[u8]) -> Result<Connection, ConnectError> {
        ConnectError::check_user_bytes(user_bytes)?;
        // Panics here in a runtime without time, before anything has changed.
        drop(tokio::time::sleep(std::time::Duration::ZERO));
        let Self { mut client, listener } = self;
        let address = client.address;
        let qpn = client.end.qpn();
        let _span = tracing::debug_span!("accept", client = %address, %qpn).entered();
        let greeting = Greeting { user_bytes: user_bytes.into(), watches: true, talks: true };
        let stream = client.accept(greeting).inspect_err(|_| listener.note_gone())?.0;
        let options = &listener.options;
        let leases = (options.lease_limits.clone(), options.lease_margin);
        let talks = client.greeting.talks;
        let limits = (options.rendezvous_timeout, options.operation_timeout);
        let addresses = stream_addresses(stream.local_addr(), address);
        let shared = Shared::new((address, addresses), false, talks, limits, leases);
        let beats = (options.peer_timeout, options.heartbeat);
        keep(client.end.inner(), stream, shared, options.qp.clone(), beats)?;
        Ok(client.end)
    }

    /// Rejects the client. Its `connect` returns [`ConnectError::Rejected`] with the first 1,024 bytes of this reason.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, why: &str) {
        self.client.reject(why);
    }
}
