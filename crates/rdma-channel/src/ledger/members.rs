//! Adding and removing peers while the channels exist.

use rdma_connect::{CloseReason, TransportError};
use rdma_qp::QueuePair;

use super::queues::{Connection, RequestSlot};
use super::{Ledger, closed};

impl Ledger {
    /// Returns the places that have a peer.
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> {
        let there =
            |(peer, connection): (usize, &Connection)| (!connection.is_absent()).then_some(peer);
        self.queues.iter().enumerate().filter_map(there)
    }

    /// Returns the lowest place without a peer.
    pub(crate) fn lowest_absent(&self) -> Option<usize> {
        self.queues.lowest_absent()
    }

    /// Adds a connection to a place without a peer. The queue pair must complete in this ledger's completion queue.
    pub(crate) fn add(&mut self, peer: usize, qp: QueuePair) {
        self.queues.put_new(peer, qp);
        self.emitted.forget(peer);
        self.checked();
    }

    /// Ends a connection and all its requests, and frees its place.
    ///
    /// # Errors
    /// Returns an error if the peer does not exist, if this process is a forked child, or if the queue pair cannot be
    /// destroyed. In the last case, the connection stays closed in its place, and its requests in flight stay in their
    /// slots.
    pub(crate) fn remove(&mut self, peer: usize) -> Result<(), TransportError> {
        let connection = self.connection(peer)?;
        if connection.is_absent() {
            return Err(closed(connection));
        }
        self.check_process()?;
        connection.close(CloseReason::Destroyed);
        self.flush();
        let destroyed = match self.queues.take_qp(peer).map(QueuePair::close) {
            None | Some(Ok(())) => Ok(()),
            Some(Err((qp, error))) => {
                self.queues.put_back(peer, qp);
                Err(error)
            }
        };
        // No handles exist any longer, because handles borrow the channels, which are mutably borrowed here.
        let is_over = |slot: &&RequestSlot| {
            let state = slot.state();
            state.is_occupied() && (destroyed.is_ok() || !state.is_in_flight())
        };
        for slot in self.all_of(self.connection(peer)?).filter(is_over) {
            if slot.state().is_in_flight() && !slot.state().is_marker() {
                self.counts.fail();
            }
            self.release(slot);
        }
        destroyed?;
        self.empty_completion_queue();
        self.queues.vacate(peer);
        Ok(())
    }

    /// Removes completions of a destroyed queue pair from the completion queue, so that the next queue pair has all the
    /// room that it needs. The number of polls is limited, because a faulty device may invent completions endlessly.
    fn empty_completion_queue(&self) {
        for _ in 0..self.cq.min_capacity() {
            // If the poll fails, it closes all connections.
            if !self.poll_any().unwrap_or(false) {
                return;
            }
        }
    }
}
