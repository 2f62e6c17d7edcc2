//! Connections that wait for their peer's endpoint.

use std::net::IpAddr;
use std::sync::Arc;

use rdma_qp::{
    ConnectAttributes, Error, PreparedQueuePair, QueuePair, QueuePairBuilder, QueuePairEndpoint,
};

use crate::connection::Connection;
use crate::driver::shared::Handle;
use crate::ledger::Ledger;
use crate::link::Inner;

/// A connection that waits for its peer's endpoint, created by [`Driver::prepare`](crate::Driver::prepare).
#[derive(Debug)]
pub struct PreparedConnection {
    pub(crate) qp: PreparedQueuePair,
    pub(crate) room: Room,
}

/// Room reserved in a completion queue.
#[derive(Debug)]
pub(crate) struct Room {
    ledger: Option<Arc<Ledger>>,
    depth: [u32; 2],
    driver: Arc<Handle>,
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.take()
            && ledger.cq().context().check_process().is_ok()
        {
            ledger.unreserve(self.depth[0] + self.depth[1]);
        }
    }
}

/// Prepares a queue pair whose requests complete in this ledger.
pub(crate) fn prepare(
    builder: QueuePairBuilder<'_>,
    ledger: &Ledger,
) -> Result<PreparedQueuePair, Error> {
    let builder = builder.send_cq(ledger.cq()).recv_cq(ledger.cq()).sq_sig_all(true);
    builder.strict_cq(true).build()
}

impl PreparedConnection {
    pub(crate) fn new(
        builder: QueuePairBuilder<'_>,
        ledger: Arc<Ledger>,
        depth: [u32; 2],
        driver: Arc<Handle>,
    ) -> Result<Self, Error> {
        let room = Room { ledger: Some(Arc::clone(&ledger)), depth, driver };
        Ok(Self { qp: prepare(builder, &ledger)?, room })
    }

    /// Returns the endpoint of this end, which the peer needs to connect.
    #[must_use]
    pub const fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }

    /// Sets the addresses of the stream over which the two ends find each other, like
    /// [`PreparedQueuePair::set_stream_addresses`]. [`Driver::connect`](crate::Driver::connect) and its listener call
    /// this automatically.
    pub fn set_stream_addresses(&mut self, own: IpAddr, peer: IpAddr) {
        self.qp.set_stream_addresses(own, peer);
    }

    /// Connects to the peer. The peer must make the same call with the endpoint of this end.
    ///
    /// # Errors
    /// Same errors as [`PreparedQueuePair::handshake`].
    pub fn handshake(self, peer: QueuePairEndpoint) -> Result<Connection, Error> {
        Ok(self.room.connection(self.qp.handshake(peer)?))
    }

    /// Returns the attributes with which [`handshake`](Self::handshake) would connect.
    ///
    /// # Errors
    /// Same errors as [`PreparedQueuePair::connect_attributes`].
    pub fn connect_attributes(&self, peer: &QueuePairEndpoint) -> Result<ConnectAttributes, Error> {
        self.qp.connect_attributes(peer)
    }

    /// Connects with these attributes, which the program can obtain by any means.
    ///
    /// # Errors
    /// Same errors as [`PreparedQueuePair::connect`].
    pub fn connect(self, attributes: ConnectAttributes) -> Result<Connection, Error> {
        Ok(self.room.connection(self.qp.connect(attributes)?))
    }
}

impl Room {
    /// Creates a connection with a connected queue pair.
    pub(crate) fn connection(mut self, qp: QueuePair) -> Connection {
        let Some(ledger) = self.ledger.take() else {
            unreachable!("the ledger is taken only here")
        };
        Connection::new(Inner::new(ledger, qp, self.depth, Arc::clone(&self.driver)))
    }
}
