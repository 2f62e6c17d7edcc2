//! Removing queue pairs, and replacing them with new ones in the same places.

use rdma_connect::{CloseReason, PeerAddress};
use rdma_qp::QueuePair;

use super::{Connection, Queues};

impl Connection {
    /// Returns true if this place has no peer.
    pub(crate) fn is_absent(&self) -> bool {
        self.closed.get() == Some(CloseReason::Absent)
    }

    /// Moves the cursors back to the first slots, because there is a queue pair again.
    fn reset_cursors(&self) {
        debug_assert!(self.qp.is_some(), "requests without a queue pair");
        for queue in [&self.send, &self.receive] {
            queue.cursor.set(queue.first);
        }
    }
}

impl Queues {
    /// Takes out a queue pair, so that it can be destroyed.
    pub(in crate::ledger) fn take_qp(&mut self, peer: usize) -> Option<QueuePair> {
        let connection = self.get_mut(peer)?;
        connection.disable_cursors();
        connection.qp.take()
    }

    /// Puts back a queue pair that could not be destroyed.
    pub(in crate::ledger) fn put_back(&mut self, peer: usize, qp: QueuePair) {
        let Some(connection) = self.get_mut(peer) else { return };
        connection.qp = Some(qp);
        if connection.closed.get().is_none() {
            connection.reset_cursors();
        }
    }

    /// Returns the lowest place without a peer.
    pub(in crate::ledger) fn lowest_absent(&self) -> Option<usize> {
        self.iter().position(Connection::is_absent)
    }

    /// Puts a new connection into a place without a peer. All slots of that place are free.
    pub(in crate::ledger) fn put_new(&mut self, peer: usize, qp: QueuePair) {
        let Some(connection) = self.get_mut(peer) else { return };
        debug_assert!(connection.is_absent() && connection.qp.is_none(), "{connection:?}");
        connection.peer = qp.peer().map(PeerAddress::from);
        connection.qp = Some(qp);
        connection.last_unsignaled.set(connection.dead);
        connection.unsignaled.set(0);
        connection.closed.set(None);
        connection.reset_cursors();
    }

    /// Frees the place for another peer. Its queue pair must have been taken out and its slots freed.
    pub(in crate::ledger) fn vacate(&mut self, peer: usize) {
        let Some(connection) = self.get_mut(peer) else { return };
        debug_assert!(connection.qp.is_none(), "{connection:?}");
        connection.peer = None;
        connection.closed.set(Some(CloseReason::Absent));
    }

    fn get_mut(&mut self, peer: usize) -> Option<&mut Connection> {
        match peer.checked_sub(1) {
            None => (self.count > 0).then_some(&mut self.first),
            Some(other) => self.others.get_mut(other),
        }
    }
}
